"""What a fault is: a change to how the engine is built or runs, at a place where real systems err."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.state import CacheState
from hicache_dbg.repro.config import ConfigError, RunConfig
from hicache_dbg.repro.engine import EnginePlan
from hicache_dbg.repro.faults.page_table import PageTable
from hicache_dbg.tracer.events import FaultClass

__all__ = ["Fault", "Parcel", "Stage", "Target", "inside", "sidecar"]

Stage = Literal["cache", "ranks", "handover", "aborts", "storage"]
"""One cache; ranks that should do the same; prefill and decode; the same where decode gives a request
up under its write; a cache over a store."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """The bytes of one tile in transit from prefill to decode; ``page`` is the logical page."""

    request: str
    pool: str
    layer: int
    page: int
    payload: bytes


def _said_to_nobody(_name: str) -> None:
    """Do not report the call."""


def _as_sent(parcel: Parcel) -> bytes | None:
    return parcel.payload


def _all_of_it(_request: str, pages: int) -> tuple[int, str]:
    return pages, "complete"


@dataclass(slots=True, eq=False)
class Target:
    """A built engine into which a fault is installed.

    Attributes:
        controller: the engine.
        table: the page table uploaded for each turn, if the workload has one.
        collective: called with the call's name wherever all ranks synchronize.
        wire: returns a tile's bytes as they arrive at decode; None if they are lost.
        handed: returns how many of a request's pages prefill hands over, and its status.
        holds_given_up: whether decode keeps the pages of an abandoned request until nobody writes
            them any more.
        pages: the pages that the fault has harmed, which a finding should name; empty if it harms
            all or none in particular.
    """

    controller: HiCacheController
    table: PageTable | None = None
    collective: Callable[[str], None] = _said_to_nobody
    wire: Callable[["Parcel"], bytes | None] = _as_sent
    handed: Callable[[str, int], tuple[int, str]] = _all_of_it
    holds_given_up: bool = True
    pages: set[int] = field(default_factory=set)

    def harmed(self, pages: Iterable[int]) -> None:
        """Record pages that the fault has just harmed."""
        self.pages.update(int(page) for page in pages)


def _as_it_is(plan: EnginePlan) -> EnginePlan:
    return plan


def _nothing(_target: Target) -> None:
    """Leave the engine as it is."""


def _never(_config: RunConfig) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Fault:
    """An injectable fault; ``cls`` is the class that a detector should report.

    ``apply`` changes how the engine is built; ``install`` changes a built engine before its first
    copy. ``pools`` are the names that a correct finding may carry; empty means the pools sharing
    the anchor's pages, together or alone. ``stage`` is where it is rehearsed: in one cache, which
    ``repro`` has too, or between several. ``needs`` says what a run must have for the fault to take
    effect, beyond its stage; ``right`` tells for which runs its change is no fault.
    """

    name: str
    cls: FaultClass
    summary: str
    apply: Callable[[EnginePlan], EnginePlan] = _as_it_is
    install: Callable[[Target], None] = _nothing
    pools: tuple[str, ...] = ()
    stage: Stage = "cache"
    needs: str = ""
    right: Callable[[RunConfig], bool] = _never


def inside(controller: HiCacheController) -> CacheState:
    """Return the engine's internal state, which faults modify."""
    return controller._state  # noqa: SLF001 - to break it is the point


def sidecar(target: Target) -> int:
    """Return the index of the first pool beside the anchor.

    Raises:
        ConfigError: the anchor is the only pool, so that the fault would change nothing.
    """
    anchor, *others = target.controller.group.mirrors
    if not others:
        raise ConfigError(
            f"this fault is in a sidecar, and {anchor.name} has none; use pools mla_index_k or "
            "deepseek_v4"
        )
    return 1
