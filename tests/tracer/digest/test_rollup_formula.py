"""The roll-up is the number that its formula says: the GPU's kernels compute the same one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.tracer.digest import xxh3
from hicache_dbg.tracer.digest.rollup import keys_of, rolled

WORD = 1 << 64
words = st.integers(0, WORD - 1)
layers = st.lists(st.integers(0, 200), min_size=1, max_size=6, unique=True)


def avalanche(value: int) -> int:
    """XXH3's avalanche, in plain integers."""
    value ^= value >> 37
    value = value * xxh3.AVALANCHE_PRIME % WORD
    return value ^ value >> 32


def rolled_up(digests: dict[int, int], key: int) -> int:
    """The roll-up of one page, as the module's text has it."""
    mixed = (avalanche((d + (n + 1) * xxh3.PRIME64_1) % WORD) for n, d in digests.items())
    return (key + sum(mixed)) % WORD or 1


@given(numbers=layers, pages=st.integers(1, 4), data=st.data())
def test_each_page_is_rolled_up_by_the_formula(
    numbers: list[int], pages: int, data: st.DataObject
) -> None:
    """From its own digests, whatever the other pages of the call hold."""
    table = [[data.draw(words) for _ in range(pages)] for _ in numbers]
    keys = [data.draw(words) for _ in range(pages)]
    got = rolled(np.array(table, np.uint64), numbers, np.array(keys, np.uint64))
    assert got.dtype == np.uint64
    assert got.tolist() == [
        rolled_up({n: row[page] for n, row in zip(numbers, table, strict=True)}, keys[page])
        for page in range(pages)
    ]


@given(st.lists(st.tuples(st.integers(-1, 1 << 62), st.integers(0, 1 << 62)), max_size=4))
def test_a_key_mixes_the_pages_life_and_its_writes(lives: list[tuple[int, int]]) -> None:
    """Each under a prime of its own, modulo 2**64; a generation of -1 is a number like any other."""
    generations, writes = (np.array([life[at] for life in lives], np.int64) for at in (0, 1))
    assert keys_of(generations, writes).tolist() == [
        (g * xxh3.PRIME64_2 + w * xxh3.PRIME64_3) % WORD for g, w in lives
    ]
