"""How many lanes one kind of operation gets."""

from collections import deque
from types import SimpleNamespace
from typing import cast

import pytest

from hicache_dbg.tracer.digest import watches
from hicache_dbg.tracer.digest.lane import Plan


def test_a_lane_that_was_not_made_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the device was out of memory, the kind still gets all its lanes afterwards."""
    full = True

    def lane(_: Plan) -> object:
        if full:
            raise MemoryError
        return object()

    monkeypatch.setattr(watches, "Lane", lane)
    kind = watches._Kind(cast("Plan", SimpleNamespace(free=deque())))
    for _ in range(watches.MOST_LANES):
        with pytest.raises(MemoryError):
            kind.lane()
    full = False
    assert all(kind.lane() is not None for _ in range(watches.MOST_LANES))
    assert kind.lane() is None
