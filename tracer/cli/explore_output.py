"""The output of ``hicache-dbg repro --explore`` as text and as JSON."""

import shlex
from dataclasses import asdict
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from hicache_dbg.repro.explore_listing import Step
from hicache_dbg.tracer.cli.explore import Explored
from hicache_dbg.tracer.words import counted

__all__ = ["as_json", "show"]

#: What precedes the step that broke, and the earlier one in conflict with it.
_MARKS = {"this": "-->", "previous": "==>", "": ""}


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
    console.print(
        f"{ran}, 0 findings: every byte read was the byte written",
        style="" if fault else "bold green",
    )
    if fault:
        console.print(
            f"not a test, this proves nothing: fault {fault} never took effect. It needs more schedules or "
            f"another --seed; hicache-dbg selftest --fault {fault} always injects it.",
            style="bold yellow",
        )


def _line(step: Step) -> Text:
    text = f"{_MARKS[step.mark]:>3} {step.number:4}  {step.actor:<16} {step.what:<28} {step.pages}"
    return Text(text.rstrip(), style="bold red" if step.mark else "")


def _finding(finding: dict[str, Any]) -> dict[str, Any]:
    """Return the finding with the keys that ``repro`` and ``diagnose`` use."""
    return {"class": finding.pop("cls"), **finding}
