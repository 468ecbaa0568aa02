"""What ``hicache-dbg ab`` prints, as a table and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from hicache_dbg.tracer.cli.ab_runs import Compared, Moves, Run
from hicache_dbg.tracer.cli.exits import OK, USAGE
from hicache_dbg.tracer.cli.repro_output import exit_code, unproven

__all__ = ["as_json", "show"]


def as_json(compared: Compared) -> dict[str, Any]:
    """Return the whole comparison for ``--json``."""
    return {
        "interrupted": compared.interrupted,
        "runs": [_run(run) for run in compared.runs],
        "moves": [
            {
                "variable": effect.variable,
                "moves": effect.moves,
                "same_sessions": effect.same,
                "corrupted": {
                    value: {"corrupted": bad, "total": total}
                    for value, (bad, total) in effect.corrupted.items()
                },
            }
            for effect in compared.moves
        ],
        "impossible": [
            {"settings": dict(values), "why": why} for values, why in compared.impossible
        ],
    }


def _run(run: Run) -> dict[str, Any]:
    result, report = run.outcome.result, run.outcome.report
    return {
        "settings": dict(run.values),
        "exit_code": exit_code(run.outcome),
        "sessions": asdict(result.sessions),
        "tiers_used": result.tiers_used,
        "engine_error": result.engine_error,
        "wall_seconds": round(result.wall_seconds, 3),
        "truth_seconds": round(result.truth_seconds, 3),
        "tiles": None if report is None else report.tiles,
        "findings": [] if report is None else report.findings,
    }


def show(compared: Compared) -> None:
    """Print one line per run, then what the corruption depends on; the verdict comes last."""
    console = Console(markup=False)
    if not console.is_terminal:
        console.width = 140  # no terminal whose width would apply
    console.print(_table(compared.runs))
    for _, why in compared.impossible:
        console.print(f"left out: {why}", style="yellow", soft_wrap=True)
    if compared.interrupted:
        console.print(
            f"interrupted in run {len(compared.runs)} of {compared.planned}: what the corruption depends "
            "on is not known",
            style="bold yellow",
            soft_wrap=True,
        )
    proven = all(exit_code(run.outcome) != USAGE for run in compared.runs)
    for effect in compared.moves:
        sure = effect.same and proven
        style = "bold red" if effect.moves else "bold green" if sure else "bold yellow"
        said = _sentence(effect, proven=proven)
        console.print(said, style=style, highlight=False, soft_wrap=True)


def _table(runs: Sequence[Run]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in runs[0].values:
        table.add_column(name, no_wrap=True)
    for heading in ("corrupted", "verified", "mismatched", "tiers s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("findings", overflow="fold")
    for run in runs:
        code = exit_code(run.outcome)
        style = "" if code == OK else "yellow" if code == USAGE else "red"
        table.add_row(*_cells(run), style=style)
    return table


def _cells(run: Run) -> list[str]:
    result, report = run.outcome.result, run.outcome.report
    counts = result.sessions
    share = counts.corrupted / counts.total if counts.total else 0.0
    tiles = ("-", "-") if report is None else (report.tiles.verified, report.tiles.mismatched)
    return [
        *map(str, run.values.values()),
        f"{counts.corrupted}/{counts.total} = {share:.0%}",
        *map(str, tiles),
        f"{result.wall_seconds - result.truth_seconds:.1f}",
        _findings(run),
    ]


def _findings(run: Run) -> str:
    result, report = run.outcome.result, run.outcome.report
    if result.interrupted:
        words = ["interrupted"]
    else:
        nothing = exit_code(run.outcome) == USAGE
        words = [f"proves nothing: {unproven(run.outcome)}"] if nothing else []
    if report is None:
        words.append("not traced")
    else:
        words += [f"{found.cls} {found.pool} x{found.count}" for found in report.findings]
    return ", ".join(words) or "-"


def _sentence(effect: Moves, *, proven: bool) -> str:
    counts = ", ".join(f"{value} {bad}/{total}" for value, (bad, total) in effect.corrupted.items())
    if effect.moves:
        return f"corruption depends on {effect.variable}: {counts}"
    same = "every session is the same to the token"
    how = same if effect.same else "not every session ended alike"
    if not proven:
        return (
            f"whether corruption depends on {effect.variable} is not known, as a run proves nothing: "
            f"{counts}; {how}"
        )
    return f"corruption does not depend on {effect.variable}: {counts}; {how}"
