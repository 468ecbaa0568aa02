"""The plain reference of XXH3-64."""

from random import Random

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.tracer.digest import xxh3


@given(st.integers(1, 3000), st.randoms(use_true_random=False))
def test_every_length_class_equals_the_package(size: int, random: Random) -> None:
    """The reference and the xxhash package agree on random bytes of random length."""
    data = random.randbytes(size)
    assert xxh3.digest(data) == xxhash.xxh3_64_intdigest(data)


_SHORT_BORDERS = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 96, 97, 128, 129, 144, 239, 240)
_LONG_BORDERS = (241, 256, 257, 1023, 1024, 1025, 1087, 1088, 1089, 2048, 2049, 4096)


_SHORT = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 96, 97, 128, 129, 144, 239, 240)
_LONG = (241, 256, 257, 1023, 1024, 1025, 1087, 1088, 1089, 2048, 2049, 4096)


@pytest.mark.parametrize("size", [*_SHORT, *_LONG])
def test_the_borders_of_the_classes(size: int) -> None:
    """At and beside every border between classes, stripes and blocks the two agree."""
    data = bytes(index * 167 + 13 & 0xFF for index in range(size))
    assert xxh3.digest(data) == xxhash.xxh3_64_intdigest(data)


@given(st.binary(min_size=1, max_size=2200), st.data())
def test_a_flipped_bit_shows(data: bytes, draw: st.DataObject) -> None:
    """Changing one bit changes the digest."""
    at = draw.draw(st.integers(0, 8 * len(data) - 1))
    changed = bytearray(data)
    changed[at // 8] ^= 1 << at % 8
    assert xxh3.digest(bytes(changed)) != xxh3.digest(data)


def test_no_bytes_are_refused() -> None:
    """A tile has at least one byte."""
    with pytest.raises(ValueError, match="no bytes to digest"):
        xxh3.digest(b"")
