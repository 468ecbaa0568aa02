"""The ring of violations: bounded, and counting past its end."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.tracer.digest.ring import Violation, ViolationRing


def _write(ring: ViolationRing, start: int, count: int) -> None:
    """What a kernel does for ``count`` violations after ``start`` earlier ones."""
    for number in range(start, start + count):
        row = torch.tensor([number, number % 7, number % 5, -1 - number])
        ring.rows[1 + number % ring.capacity] = row
    ring.rows[0, 0] = start + count


@given(st.integers(1, 6), st.lists(st.integers(0, 15), max_size=6))
def test_every_violation_is_taken_or_counted(capacity: int, bursts: list[int]) -> None:
    """What is taken is the newest of each burst, in order, and the rest is counted as lost."""
    ring, written = ViolationRing("cpu", capacity), 0
    for burst in bursts:
        _write(ring, written, burst)
        ring.fetch()
        taken = ring.take()
        kept = range(written + max(0, burst - capacity), written + burst)
        assert taken.violations == tuple(
            Violation(number, number % 7, number % 5, (1 << 64) - 1 - number) for number in kept
        )
        assert taken.lost == burst - len(kept)
        written += burst


def test_nothing_is_taken_twice() -> None:
    """A second look without a new fetch brings nothing."""
    ring = ViolationRing("cpu", 4)
    _write(ring, 0, 3)
    ring.fetch()
    assert len(ring.take().violations) == 3
    assert ring.take().violations == ()


def test_a_ring_has_room() -> None:
    """A ring without room is refused."""
    with pytest.raises(ValueError, match="expected room for at least 1"):
        ViolationRing("cpu", 0)
