"""What ``hicache-dbg repro`` prints, as text and as JSON, and what it exits with."""

from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from rich.console import Console

from hicache_dbg.repro.result import RunResult, corruption_line, wall_line
from hicache_dbg.tracer.cli.exits import CORRUPT, INTERRUPTED, OK, USAGE
from hicache_dbg.tracer.cli.render import render_report
from hicache_dbg.tracer.diagnose.report import Report

__all__ = ["Outcome", "as_json", "exit_code", "show"]


@dataclass(slots=True)
class Outcome:
    """A run, and what the tracer saw of it."""

    result: RunResult
    report: Report | None


def exit_code(outcome: Outcome) -> int:
    """0 clean, 1 corrupt, 2 where the run proved nothing, 130 interrupted."""
    result, report = outcome.result, outcome.report
    if result.interrupted:
        return INTERRUPTED
    found = report is not None and report.corrupt
    if result.sessions.corrupted or found or result.engine_error:
        return CORRUPT
    return OK if result.tiers_used else USAGE


def as_json(outcome: Outcome) -> str:
    """Everything, for programs."""
    result = outcome.result
    data: dict[str, Any] = {
        "config": asdict(result.config),
        "fault": result.fault,
        "interrupted": result.interrupted,
        "sessions": asdict(result.sessions),
        "divergences": [
            {"session": report.session, "status": report.status.value, "error": report.error}
            | (asdict(report.divergence) if report.divergence else {})
            for report in result.reports
            if report.corrupted
        ],
        "engine": asdict(result.stats),
        "engine_error": result.engine_error,
        "tiers_used": result.tiers_used,
        "wall_seconds": round(result.wall_seconds, 3),
        "truth_seconds": round(result.truth_seconds, 3),
    }
    if outcome.report is not None:
        data |= msgspec.to_builtins(outcome.report)
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode()


def show(outcome: Outcome) -> None:
    """Everything, for a person; the verdict last, where the eye is."""
    result, console = outcome.result, Console(markup=False)
    if result.config.tag:
        console.print(f"run {result.config.tag}", style="bold")
    if outcome.report is not None:
        render_report(console, outcome.report)
    stats = result.stats
    console.print(
        f"\nengine: {stats.backups} backups, {stats.loads} loads, {stats.host_hit_pages} pages hit on the "
        f"host, {stats.device_hit_pages} on the device, {stats.evicted_pages} evicted"
    )
    # In one piece whatever the width, so that they can be searched for.
    lines = [(wall_line(result), ""), (corruption_line(result), _verdict_style(outcome))]
    if outcome.report is not None:
        lines.append((f"verdict: {outcome.report.verdict}", ""))
    for line, style in lines:
        console.print(line, highlight=False, style=style, soft_wrap=True)
    if result.engine_error:
        console.print(f"engine error: {result.engine_error}", style="bold red")
    if result.interrupted:
        console.print("interrupted: the sessions above had ended by then", style="yellow")
    elif not result.tiers_used:
        console.print(
            "not a test: no page came back from the host, so this run proves nothing. "
            "Use fewer --device-pages or more --sessions.",
            style="bold yellow",
        )


def _verdict_style(outcome: Outcome) -> str:
    return "bold green" if exit_code(outcome) == OK else "bold red"
