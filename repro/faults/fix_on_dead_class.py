"""Act two: the formula is mended in a class that this model's index-K is not mirrored by."""

from dataclasses import replace

from hicache_dbg.pools.host import IndexKHostPool, PagedHostPool, host_geometry_like
from hicache_dbg.repro.engine import EnginePlan
from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.repro.faults.index_pools import index_pools, sized_as_fp8, stores_fp8
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULT"]

_NAME = "fix_on_dead_class"


def _apply(plan: EnginePlan) -> EnginePlan:
    mirrored = dict.fromkeys(index_pools(plan, _NAME), PagedHostPool)
    return replace(
        plan,
        host_class={**plan.host_class, **mirrored},
        host_formula={
            **plan.host_formula,
            IndexKHostPool: host_geometry_like,  # mended, and never built
            PagedHostPool: sized_as_fp8,
        },
    )


FAULT = Fault(
    name=_NAME,
    cls=FaultClass.ROW_WIDTH,
    summary="the size formula is mended in IndexKHostPool, but PagedHostPool mirrors index-K",
    apply=_apply,
    right=stores_fp8,
)
