"""Explore schedules of a small cache until one breaks, then shrink it to the fewest operations.

A seed determines the operations of two readers and the order in which threads, kernels and copies
run, so what broke once breaks again. The tracer's checks examine every step as it happens.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.repro.explore_cache import Readers
from hicache_dbg.repro.explore_cases import Case, case_of
from hicache_dbg.repro.explore_copies import copies_on
from hicache_dbg.repro.explore_listing import Listing, Step
from hicache_dbg.repro.explore_stage import Stage
from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.tracer.attach.hicache_lifetimes import LifetimeAttachment
from hicache_dbg.tracer.attach.notes import Note
from hicache_dbg.tracer.events import Finding
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.settings import Settings

__all__ = ["Broken", "Explorer", "exploring"]


@dataclass(frozen=True, slots=True)
class Broken:
    """A schedule that broke.

    Attributes:
        case: what was done, in which order.
        finding: the finding of the first check that saw it; None if a reader got wrong bytes or the
            engine refused.
        words: what is wrong, in one line.
        steps: all steps up to the failure; the last one and the one it conflicts with are marked.
    """

    case: Case
    finding: Finding | None
    words: str
    steps: tuple[Step, ...]

    @property
    def what(self) -> str:
        """Fault class, or what a reader observed."""
        return self.finding.cls.value if self.finding else "wrong bytes"


@dataclass(slots=True)
class _On:
    enabled: bool = True


@dataclass(slots=True)
class _Desk:
    """Judges each note at once, on the thread that took it."""

    errors: InternalErrors = field(default_factory=lambda: InternalErrors(reraise=True))
    settings: Settings = field(default_factory=Settings)
    probe: _On = field(default_factory=_On)
    listing: Listing | None = None

    def check(self, detect: Callable[[], object]) -> bool:
        """Run the check at once."""
        detect()
        return True

    def push(self, record: Note) -> bool:
        """Add a note's access to the listing, with what is wrong with it."""
        if self.listing is not None:
            self.listing.add(record)
        return True


class Explorer:
    """Runs schedules; created by :func:`exploring`."""

    def __init__(self, fault: Fault | None, desk: _Desk, lifetimes: LifetimeAttachment) -> None:
        self._fault = fault
        self._desk = desk
        self._lifetimes = lifetimes

    def first_broken(
        self, schedules: int, seed: int = 0, on_schedule: Callable[[int], None] = lambda _: None
    ) -> Broken | None:
        """Return the first of ``schedules`` schedules, from ``seed`` on, that breaks, or None."""
        for number in range(schedules):
            broken = self.run(case_of(seed + number))
            on_schedule(number + 1)
            if broken is not None:
                return broken
        return None

    def run(self, case: Case) -> Broken | None:
        """Run one schedule; return what broke, or None."""
        self._lifetimes.start_over()
        stage = Stage(case.seed, case.eagerness)
        listing = self._desk.listing = Listing(stage)
        self._lifetimes.host_access("begin", ())  # from here on, the order of accesses is checked
        with copies_on(stage.streams):
            readers = Readers(stage, case, self._fault, listing.met)
            try:
                readers.begin()
                _to_the_end(stage, listing)
                if not stage.over:
                    readers.end()
                    _to_the_end(stage, listing)
            finally:
                self._desk.listing = None
                stage.clear()
                readers.close()
        if not listing.broken:
            return None
        return Broken(case, listing.finding, listing.words, tuple(listing.steps))

    def shrink(self, broken: Broken) -> Broken:
        """Return the simplest case that breaks in the same way: fewest operations and switches.

        Raises:
            ModuleNotFoundError: hypothesis, which does the shrinking, is not installed.
        """
        from hicache_dbg.repro.explore_shrink import simplest

        def breaks(case: Case) -> bool:
            again = self.run(case)
            return again is not None and again.what == broken.what

        return self.run(simplest(broken.case, breaks)) or broken


def _to_the_end(stage: Stage, listing: Listing) -> None:
    """Run all actors to the end; an actor that is stuck or has failed counts as a break."""
    stuck = stage.run()
    if stuck:
        listing.met(stuck[0], "waits for what nobody will do")
    for actor in stage.actors:
        if actor.error is not None:
            listing.met(actor.name, f"{type(actor.error).__name__}: {actor.error}")


@contextmanager
def exploring(fault: Fault | None = None) -> Iterator[Explorer]:
    """Attach the checks to an engine with ``fault`` and yield an explorer for it."""
    desk = _Desk()
    lifetimes = LifetimeAttachment(desk)
    lifetimes.attach()
    lifetimes.attach_controller(HiCacheController)
    try:
        yield Explorer(fault, desk, lifetimes)
    finally:
        lifetimes.detach()
