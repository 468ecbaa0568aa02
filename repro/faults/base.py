"""What a fault is: a change to how the engine is built, at the place where real systems err."""

from collections.abc import Callable
from dataclasses import dataclass

from hicache_dbg.repro.engine import EnginePlan
from hicache_dbg.tracer.events import FaultClass

__all__ = ["Fault"]


@dataclass(frozen=True, slots=True)
class Fault:
    """An injectable fault; ``cls`` is the class that a detector should name."""

    name: str
    cls: FaultClass
    summary: str
    apply: Callable[[EnginePlan], EnginePlan]
