"""A roll-up equals one other only: of the same digests, in the same layers, under the same key."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from hicache_dbg.tracer.digest.rollup import keys_of, rolled

seeds = st.integers(0, 1 << 32)


def _digests(seed: int, layers: int, pages: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 63, (layers, pages), np.uint64) * 2 + 1


@given(seeds, st.integers(1, 9), st.integers(1, 5))
def test_layers_may_come_in_any_order(seed: int, layers: int, pages: int) -> None:
    """Whichever layer is digested first, the roll-up is the same."""
    digests, keys = _digests(seed, layers, pages), _digests(seed + 1, 1, pages)[0]
    order = np.random.default_rng(seed).permutation(layers)
    assert (
        rolled(digests, range(layers), keys) == rolled(digests[order], order.tolist(), keys)
    ).all()


@given(seeds, st.integers(2, 9), st.data())
def test_any_other_bit_layer_or_key_is_another_roll_up(
    seed: int, layers: int, data: st.DataObject
) -> None:
    """One bit of one digest, two layers exchanged, one layer less, another life: none is equal."""
    digests, keys = _digests(seed, layers, 1), _digests(seed + 1, 1, 1)[0]
    whole = rolled(digests, range(layers), keys)
    one, other = data.draw(
        st.lists(st.integers(0, layers - 1), min_size=2, max_size=2, unique=True)
    )
    flipped, exchanged = digests.copy(), digests.copy()
    flipped[one] ^= np.uint64(1 << data.draw(st.integers(0, 63)))
    exchanged[[one, other]] = digests[[other, one]]
    assume((exchanged != digests).any())
    assert rolled(flipped, range(layers), keys) != whole
    assert rolled(exchanged, range(layers), keys) != whole
    assert rolled(digests[1:], range(1, layers), keys) != whole
    assert rolled(digests, range(layers), keys + np.uint64(1)) != whole


@given(st.integers(0, 1 << 31), st.integers(0, 1 << 31))
def test_a_page_that_was_written_again_has_another_key(generation: int, writes: int) -> None:
    """Neither another generation nor one more write of the same one can be taken for the first."""
    life = np.array([generation, generation + 1, generation], np.int64)
    written = np.array([writes, writes, writes + 1], np.int64)
    assert len(set(keys_of(life, written).tolist())) == 3


def test_nothing_known_is_no_roll_up() -> None:
    """A sum that happens to be 0 is kept as 1: 0 in the table means that nothing is known."""
    digests = _digests(3, 2, 1)
    sum_of = rolled(digests, range(2), np.zeros(1, np.uint64))
    assert rolled(digests, range(2), np.uint64(0) - sum_of) == 1
