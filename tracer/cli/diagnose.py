"""``hicache-dbg diagnose``: recordings in, hypotheses and verdicts out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from hicache_dbg.exporters.recording_format import RecordingError, read, recordings_in
from hicache_dbg.tracer.cli.exits import CORRUPT, OK, CommandError
from hicache_dbg.tracer.cli.render import render_report
from hicache_dbg.tracer.cli.report import build_report
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.events import Event

__all__ = ["command"]


def command(
    recordings: Annotated[
        list[Path], typer.Argument(help="Recordings, or folders that hold them.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Read recordings and say, hypothesis by hypothesis, what they falsify and confirm.

    Exits 1 if they hold a mismatched tile or a finding.

    Example: hicache-dbg diagnose ~/.local/state/hicache-dbg
    """
    evidence = Evidence.of(_events(recordings))
    report = build_report(evidence)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        console = Console(markup=False)
        render_report(console, report)
        console.print(f"\nverdict: {report.verdict}", highlight=False)
    corrupt = bool(report.findings or report.tiles["mismatched"])
    raise typer.Exit(CORRUPT if corrupt else OK)


def _events(places: list[Path]) -> Iterator[Event]:
    for path in _files(places):
        try:
            yield from read(path)
        except RecordingError as error:
            raise CommandError(str(error)) from error


def _files(places: list[Path]) -> list[Path]:
    files: list[Path] = []
    for place in places:
        inside = recordings_in(place) if place.is_dir() else [place]
        if not inside:
            raise CommandError(f"{place} holds no recording (*.jsonl or *.jsonl.zst)")
        files.extend(inside)
    return files
