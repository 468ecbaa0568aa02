"""Published fault reports about state that is not copied, each with its correct diagnosis."""

from dataclasses import replace

import torch

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import Component, Layout, RunSpec
from hicache_dbg.pools.host import LatentHostPool, Mirror, host_geometry_like
from hicache_dbg.pools.kinds import mla
from hicache_dbg.tracer.attach.hicache_views import mirror_views
from hicache_dbg.tracer.checks.registration import check_mirror
from hicache_dbg.tracer.events import FaultClass


def test_a_buffer_that_the_parents_mirror_does_not_have() -> None:
    """Entry 27: the pool has {kv, index_k}, the inherited mirror only {kv}.

    So index_k has no mirror.
    """
    plain = mla(2, 4)
    index_k = Component("index_k", torch.uint8, (RunSpec("key", 132),))
    both = replace(plain, components=(*plain.components, index_k))
    device = DevicePool(both, 4)
    parent = Mirror(device, LatentHostPool(plain, 4, Layout.PAGE_FIRST))
    (found,) = check_mirror(mirror_views(parent, None), time_ns=1)
    assert (found.cls, found.component, found.got) == (
        FaultClass.SIDECAR_MISSING,
        "index_k",
        "none",
    )
    assert "no mirror of it" in found.message
    whole = Mirror(device, LatentHostPool(host_geometry_like(device), 4, Layout.PAGE_FIRST))
    assert check_mirror(mirror_views(whole, None), time_ns=1) == []
