"""Act one: the class that mirrors index-K has the fp8 formula."""

from dataclasses import replace

from hicache_dbg.pools.host import IndexKHostPool
from hicache_dbg.repro.engine import EnginePlan
from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.repro.faults.fp8_formula import sized_as_fp8
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULT"]


def _apply(plan: EnginePlan) -> EnginePlan:
    return replace(plan, host_formula={**plan.host_formula, IndexKHostPool: sized_as_fp8})


FAULT = Fault(
    name="host_sized_for_fp8",
    cls=FaultClass.ROW_WIDTH,
    summary="the host mirror of index-K is sized by the fp8 formula whatever the device stores",
    apply=_apply,
)
