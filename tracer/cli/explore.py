"""``hicache-dbg repro --explore N``: run many schedules of a small cache until one fails."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from hicache_dbg.repro.config import ConfigError
from hicache_dbg.repro.explore import Broken, exploring
from hicache_dbg.repro.fault_place import misplaced
from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.tracer.cli.exits import CORRUPT, OK, USAGE

__all__ = ["Explored", "explore"]

#: The most schedules of one call; they take about four hours.
MOST_SCHEDULES = 1_000_000


@dataclass(frozen=True, slots=True)
class Explored:
    """The result of an exploration.

    ``first`` is the failing schedule as generated from its seed, ``simplest`` the same after
    shrinking; they are equal if nothing could be shrunk.
    """

    fault: str
    seed: int
    schedules: int
    seconds: float
    first: Broken | None = None
    simplest: Broken | None = None
    shrunk: bool = False

    @property
    def exit_code(self) -> int:
        """0 if every schedule was clean, 1 if one failed, 2 if an injected fault broke none."""
        if self.first is not None:
            return CORRUPT
        return USAGE if self.fault else OK


def explore(
    schedules: int,
    seed: int,
    fault: Fault | None,
    progress: AbstractContextManager[Callable[[int, int, str], None]],
) -> Explored:
    """Run schedules until one fails, then shrink it.

    Raises:
        ConfigError: the number of schedules is out of range, or the fault needs sessions.
    """
    if not 1 <= schedules <= MOST_SCHEDULES:
        raise ConfigError(f"explore is {schedules}, expected 1 to {MOST_SCHEDULES} schedules")
    if fault is not None and fault.stage != "cache":
        raise misplaced(fault)
    name, ran, began = fault.name if fault else "", 0, time.perf_counter()
    with exploring(fault) as explorer, progress as advance:

        def on_schedule(done: int) -> None:
            nonlocal ran
            ran = done
            advance(done, schedules, "schedules")

        first = explorer.first_broken(schedules, seed, on_schedule)
        explored = Explored(name, seed, ran, time.perf_counter() - began, first)
        if first is None:
            return explored
        advance(ran, schedules, "shrinking")
        try:
            return replace(explored, simplest=explorer.shrink(first), shrunk=True)
        except ModuleNotFoundError:  # without hypothesis, report the schedule unshrunk
            return replace(explored, simplest=first)
