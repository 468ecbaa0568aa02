"""``hicache-dbg repro --explore N``: run many schedules of a small cache until one fails."""

import shlex
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from hicache_dbg.repro.config import ConfigError
from hicache_dbg.repro.explore import Broken, exploring
from hicache_dbg.repro.explore_listing import Step
from hicache_dbg.repro.fault_place import misplaced
from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.tracer.cli.exits import CORRUPT, OK, USAGE
from hicache_dbg.tracer.words import counted

__all__ = ["Explored", "explore"]

#: The most schedules of one call; they take about four hours.
MOST_SCHEDULES = 1_000_000

_MARKS = {"this": "-->", "previous": "==>", "": ""}


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


def as_json(explored: Explored) -> dict[str, Any]:
    """Return the whole result for ``--json``."""
    data: dict[str, Any] = {
        "explored": {
            "fault": explored.fault,
            "seed": explored.seed,
            "schedules": explored.schedules,
            "seconds": round(explored.seconds, 3),
        },
        "broken": None,
        "findings": [],
    }
    first, simplest = explored.first, explored.simplest
    if first is not None and simplest is not None:
        data["broken"] = {
            "seed": first.case.seed,
            "what": simplest.what,
            "message": simplest.words,
            "shrunk": explored.shrunk,
            "found": asdict(first.case),
            "case": asdict(simplest.case),
            "steps": [asdict(step) for step in simplest.steps],
        }
        finding = simplest.finding
        data["findings"] = [] if finding is None else [_finding(msgspec.to_builtins(finding))]
    return data


def show(explored: Explored) -> None:
    """Print the whole result; what is wrong comes last."""
    console = Console(markup=False, highlight=False, soft_wrap=True)
    first, simplest = explored.first, explored.simplest
    ran = f"{counted(explored.schedules, 'schedule')} in {explored.seconds:.1f} s"
    if first is None or simplest is None:
        _clean(console, ran, explored.fault)
        return
    for step in simplest.steps:
        if not step.quiet:
            console.print(_line(step))
    how = "shrunk to" if explored.shrunk else "not shrunk (hypothesis is not installed):"
    console.print(
        f"\n{ran}; seed {first.case.seed} breaks with {counted(len(first.case.operations), 'operation')}, {how} "
        f"{len(simplest.case.operations)}, write policy {simplest.case.policy}:"
    )
    for operation in simplest.case.operations:
        console.print(f"  {operation}")
    console.print(f"{simplest.what}: {simplest.words}", style="bold red")
    if simplest.finding is not None:
        console.print(f"do: {simplest.finding.advice}", style="cyan")
    fault = f" --fault {shlex.quote(explored.fault)}" if explored.fault else ""
    console.print(f"again: hicache-dbg repro --explore 1 --seed {first.case.seed}{fault}")


def _clean(console: Console, ran: str, fault: str) -> None:
    said = f"{ran}, 0 findings: every byte read was the byte written"
    console.print(said, style="" if fault else "bold green")
    if fault:
        console.print(
            f"not a test, this proves nothing: fault {fault} found no occasion. It needs more schedules, or "
            f"another --seed; hicache-dbg selftest --fault {fault} has one.",
            style="bold yellow",
        )


def _line(step: Step) -> Text:
    text = f"{_MARKS[step.mark]:>3} {step.number:4}  {step.actor:<16} {step.what:<28} {step.pages}"
    return Text(text.rstrip(), style="bold red" if step.mark else "")


def _finding(finding: dict[str, Any]) -> dict[str, Any]:
    """Return the finding with the keys that ``repro`` and ``diagnose`` use."""
    return {"class": finding.pop("cls"), **finding}
