"""What the host tier was given is compared with the memory that its pools really hold."""

import pytest
from tests.pools.caching import group_of, sequences, turn

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.tracer.events import FaultClass, Finding
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Gate, Settings


def real(group: PoolGroup) -> int:
    """Bytes of the host pools' tensors."""
    return sum(mirror.host.nbytes for mirror in group.mirrors)


def told(caches: int, share: float) -> list[Finding]:
    """Findings of so many caches under a budget of this share of one cache's bytes."""
    sink = MemorySink()
    groups = [group_of(8, 64) for _ in range(caches)]
    budget = share * real(groups[0]) / 1e9
    with Runtime.start(Settings(gate=Gate.ON, host_gb=budget), sinks=[sink]) as runtime:
        for group in groups:
            with HiCacheController(group) as controller:
                turn(controller, sequences([[0]])[0])
        assert runtime.flush()
    return sink.of(Finding)


@pytest.mark.parametrize(("caches", "share"), [(1, 1.0), (2, 2.0), (1, 50.0)])
def test_pools_that_hold_what_was_given_or_less_are_right(caches: int, share: float) -> None:
    """To the byte, and with pools still to come."""
    assert told(caches, share) == []


@pytest.mark.parametrize(("caches", "share"), [(1, 0.5), (2, 1.0), (3, 1.5)])
def test_pools_that_hold_more_are_told_once(caches: int, share: float) -> None:
    """Also where each cache by itself would fit; with the bytes of each pool."""
    (found,) = told(caches, share)
    assert found.cls is FaultClass.PINNING
    assert "were set aside (HICACHE_DBG_HOST_GB=" in found.message
    assert "dsa_index_k" in found.message
