"""Act one: the class that mirrors index-K has the fp8 formula."""

from dataclasses import replace

from hicache_dbg.repro.engine import EnginePlan
from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.repro.faults.index_pools import index_pools, sized_as_fp8, stores_fp8
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULT"]

_NAME = "host_sized_for_fp8"


def _apply(plan: EnginePlan) -> EnginePlan:
    classes = {plan.host_class[pool] for pool in index_pools(plan, _NAME)}
    return replace(plan, host_formula={**plan.host_formula, **dict.fromkeys(classes, sized_as_fp8)})


FAULT = Fault(
    name=_NAME,
    cls=FaultClass.ROW_WIDTH,
    summary="the host mirror of index-K is sized by the fp8 formula whatever the device stores",
    apply=_apply,
    right=stores_fp8,
)
