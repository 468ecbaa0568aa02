"""Act two: the formula is mended in a class that this model's index-K is not mirrored by."""

from dataclasses import replace

from hicache_dbg.pools.host import IndexKHostPool, PagedHostPool, host_geometry_like
from hicache_dbg.repro.engine import EnginePlan
from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.repro.faults.fp8_formula import sized_as_fp8
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULT"]


def _apply(plan: EnginePlan) -> EnginePlan:
    return replace(
        plan,
        host_class={**plan.host_class, "dsa_index_k": PagedHostPool},
        host_formula={
            **plan.host_formula,
            IndexKHostPool: host_geometry_like,  # mended, and never built
            PagedHostPool: sized_as_fp8,
        },
    )


FAULT = Fault(
    name="fix_on_dead_class",
    cls=FaultClass.ROW_WIDTH,
    summary="the size formula is mended in IndexKHostPool, but PagedHostPool mirrors index-K",
    apply=_apply,
)
