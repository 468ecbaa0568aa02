"""Every device pool under the pages of a cache is mirrored, or waived by name."""

from contextlib import closing

import numpy as np
import pytest

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import GeometryError, Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.host import Mirror, host_geometry_like, host_pool_for
from hicache_dbg.pools.kinds import index_k, mla
from hicache_dbg.tracer.events import FaultClass, Finding
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Gate, Settings

PAGES = 4


def found(*waived: str) -> tuple[list[Finding], int]:
    """What is found of a cache that leaves index-K behind, and how many pages it backed up."""
    anchor, left_behind = DevicePool(mla(2, 64), PAGES), DevicePool(index_k(2, 64), PAGES)
    mirror = Mirror(anchor, host_pool_for(host_geometry_like(anchor), 8, Layout.PAGE_FIRST))
    sink = MemorySink()
    with (
        Runtime.start(Settings(gate=Gate.ON), sinks=[sink]) as runtime,
        closing(PoolGroup((mirror,), unmirrored=(left_behind,), waived=waived)) as group,
        HiCacheController(group) as cache,
    ):
        cache.insert(np.arange(128), cache.alloc_device(2))
        cache.flush()
        moved = cache.stats.backed_up_pages
        runtime.flush()
    return sink.of(Finding), moved


def test_a_pool_that_is_left_behind_is_told_before_a_byte_moves() -> None:
    """The finding names the pool and its bytes, and what to do."""
    (finding,), moved = found()
    assert moved == 2
    assert (finding.cls, finding.pool, finding.check) == (
        FaultClass.SIDECAR_MISSING,
        "dsa_index_k",
        "registration",
    )
    assert "32768 B a page" in finding.message
    assert "waive it by name" in finding.advice


def test_a_waiver_by_name_is_enough() -> None:
    """The same cache, and nothing is said."""
    assert found("dsa_index_k") == ([], 2)


def test_a_waiver_of_nothing_is_refused() -> None:
    """A name that is no pool without a mirror is a mistake that would hide one."""
    with pytest.raises(GeometryError, match="waived are index"):
        found("index")
