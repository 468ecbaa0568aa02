"""What a fault is: a change to how the engine is built or runs, at the place where real systems err."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.state import CacheState
from hicache_dbg.repro.engine import EnginePlan
from hicache_dbg.repro.faults.page_table import PageTable
from hicache_dbg.tracer.events import FaultClass

__all__ = ["Fault", "Target", "inside"]


@dataclass(slots=True, eq=False)
class Target:
    """A built engine that a fault is installed in.

    Attributes:
        controller: the engine.
        table: the page table that is uploaded for each turn, where the workload has one.
        pages: the pages that the fault has done harm to, which a finding should name; empty if it
            harms all or none in particular.
    """

    controller: HiCacheController
    table: PageTable | None = None
    pages: set[int] = field(default_factory=set)

    def harmed(self, pages: Iterable[int]) -> None:
        """Note pages that the fault has just harmed."""
        self.pages.update(int(page) for page in pages)


def _as_it_is(plan: EnginePlan) -> EnginePlan:
    return plan


def _nothing(_target: Target) -> None:
    """Leave the engine as it is."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An injectable fault; ``cls`` is the class that a detector should name.

    ``apply`` changes how the engine is built, ``install`` one that is built, before its first copy.
    ``pools`` are the names that a right finding may carry; empty: those that share the anchor's
    pages, together or alone.
    """

    name: str
    cls: FaultClass
    summary: str
    apply: Callable[[EnginePlan], EnginePlan] = _as_it_is
    install: Callable[[Target], None] = _nothing
    pools: tuple[str, ...] = ()


def inside(controller: HiCacheController) -> CacheState:
    """The engine's book, which faults change."""
    return controller._state  # noqa: SLF001 - to break it is the point
