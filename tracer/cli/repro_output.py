"""The output of ``hicache-dbg repro`` as text and as JSON, and its exit code."""

from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from hicache_dbg.repro.result import RunResult, corruption_line, wall_line
from hicache_dbg.tracer.cli.exits import CORRUPT, INTERRUPTED, OK, USAGE
from hicache_dbg.tracer.cli.render import (
    render_advice,
    render_report,
    render_verdict,
    table,
)
from hicache_dbg.tracer.diagnose.report import Report
from hicache_dbg.tracer.words import counted

__all__ = ["Outcome", "as_json", "exit_code", "show", "unproven"]


@dataclass(slots=True)
class Outcome:
    """A run and the tracer's report of it."""

    result: RunResult
    report: Report | None


def exit_code(outcome: Outcome) -> int:
    """Return 0 if clean, 1 if corrupt, 2 if the run proves nothing, 130 if interrupted."""
    result, report = outcome.result, outcome.report
    if result.interrupted:
        return INTERRUPTED
    found = report is not None and report.corrupt
    if result.sessions.corrupted or found or result.engine_error:
        return CORRUPT
    return USAGE if unproven(outcome) else OK


def unproven(outcome: Outcome) -> str:
    """Return why a run without findings proves nothing and what would.

    Empty if it proves something.
    """
    result = outcome.result
    if not result.tiers_used:
        fewer = "--host-pages" if result.config.storage else "--device-pages"
        return f"no page came back from {_last_tier(result)}. Use fewer {fewer} or more --sessions"
    if result.config.pd and result.config.kill and not result.stats.prefills_lost:
        return "prefill ended before the request at which it is killed. Use more --sessions or --rounds"
    if not result.occasion:
        return ""
    if outcome.report is None:
        return f"fault {result.fault} changed no reply, and nothing was traced. Use another --gate"
    return f"fault {result.fault} never took effect. It needs {result.occasion}"


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return the whole outcome for ``--json``."""
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
        "exchanges": [asdict(exchange) for exchange in result.exchanges],
        "tiers_used": result.tiers_used,
        "unproven": unproven(outcome) if exit_code(outcome) == USAGE else "",
        "wall_seconds": round(result.wall_seconds, 3),
        "truth_seconds": round(result.truth_seconds, 3),
    }
    if outcome.report is not None:
        data |= msgspec.to_builtins(outcome.report)
    return data


def show(outcome: Outcome) -> None:
    """Print the whole outcome. It begins with the verdict, and ends with it, which a terminal shows."""
    result, console = outcome.result, Console(markup=False)
    if result.config.tag:
        console.print(f"run {result.config.tag}", style="bold")
    _reservations(console, outcome)
    if outcome.report is not None:
        render_verdict(console, outcome.report)
        render_advice(console, outcome.report)
        render_report(console, outcome.report)
    if result.exchanges:
        console.print(_replies(result))
    _engine(console, result)
    # Never wrapped, so that they can be searched for.
    for line, style in (
        (wall_line(result), ""),
        (corruption_line(result), _verdict_style(outcome)),
    ):
        console.print(line, highlight=False, style=style, soft_wrap=True)
    if outcome.report is not None:
        render_verdict(console, outcome.report)


def _reservations(console: Console, outcome: Outcome) -> None:
    """Print what the verdict must be read with: an error of the engine, a run cut short or in vain."""
    result, said = outcome.result, ""
    if result.engine_error:
        console.print(f"engine error: {result.engine_error}", style="bold red", soft_wrap=True)
    if result.interrupted:
        said = "interrupted: only the sessions below had ended by then"
    elif exit_code(outcome) == USAGE:
        said = f"not a test, this run proves nothing: {unproven(outcome)}."
    if said:
        console.print(said, style="bold yellow", soft_wrap=True)


def _engine(console: Console, result: RunResult) -> None:
    """Print the engine's counters."""
    stats = result.stats
    console.print(
        f"\nengine: {counted(stats.backups, 'backup')}, {counted(stats.loads, 'load')}, "
        f"{counted(stats.host_hit_pages, 'page')} hit on the "
        f"host, {stats.device_hit_pages} on the device, {stats.evicted_pages} evicted",
        soft_wrap=True,
    )
    if result.config.storage:
        console.print(
            f"storage ({result.config.storage}): {counted(stats.stored_pages, 'page')} stored, {stats.fetched_pages} "
            f"fetched; misses {stats.storage_misses}, not stored {stats.unstored}",
            highlight=False,
            soft_wrap=True,
        )
    if result.config.pd:
        console.print(
            f"prefill to decode: {counted(stats.handed_pages, 'page')} handed over, prefill processes lost: "
            f"{stats.prefills_lost}",
            highlight=False,
        )


def _last_tier(result: RunResult) -> str:
    if result.config.pd:
        return "prefill"
    return "storage" if result.config.storage else "the host"


def _verdict_style(outcome: Outcome) -> str:
    return {OK: "bold green", USAGE: "bold yellow"}.get(exit_code(outcome), "bold red")


def _replies(result: RunResult) -> Table:
    """List every reply, beside the reply of the model without the tiers if that differs."""
    replies = table("", "question", "reply through the tiers", "without them", title="\nReplies")
    for exchange in result.exchanges:
        same = exchange.expected == exchange.got
        replies.add_row(
            f"{exchange.chat}.{exchange.turn}",
            exchange.question,
            exchange.got,
            "the same" if same else exchange.expected,
            style="" if same else "bold red",
        )
    return replies
