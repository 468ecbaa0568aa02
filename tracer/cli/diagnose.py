"""``hicache-dbg diagnose``: read recordings or the journal, print hypotheses and verdicts."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from hicache_dbg.exporters.html.page import HtmlError, write_html
from hicache_dbg.exporters.parts import PartMissingError
from hicache_dbg.exporters.perfetto import PerfettoError, write_perfetto
from hicache_dbg.exporters.recording_format import RecordingError
from hicache_dbg.exporters.timeline import Slice
from hicache_dbg.tracer.cli.diagnose_output import show_comparison
from hicache_dbg.tracer.cli.exits import MISSING, CommandError, of_reports
from hicache_dbg.tracer.cli.json_output import AsJson, print_json
from hicache_dbg.tracer.cli.logs import Query
from hicache_dbg.tracer.cli.progress import progress
from hicache_dbg.tracer.cli.render import show_report
from hicache_dbg.tracer.diagnose.compare import compare
from hicache_dbg.tracer.diagnose.database import Database, Source
from hicache_dbg.tracer.diagnose.gather import gather
from hicache_dbg.tracer.diagnose.hypothesis import Hypothesis, in_order, known_hypotheses
from hicache_dbg.tracer.diagnose.joined import joined, processes_of
from hicache_dbg.tracer.diagnose.journal import JournalError, JournalMissingError, JournalSource
from hicache_dbg.tracer.diagnose.page import page_of
from hicache_dbg.tracer.diagnose.recordings import RecordingSource
from hicache_dbg.tracer.diagnose.report import build_report
from hicache_dbg.tracer.diagnose.runs import chosen_at
from hicache_dbg.tracer.diagnose.timeline import findings_of, slices_of
from hicache_dbg.tracer.diagnose.user_files import HypothesisFileError, hypothesis_from

__all__ = ["command"]


def command(
    recordings: Annotated[
        list[Path] | None, typer.Argument(help="Recordings, or folders of recordings.")
    ] = None,
    journal: Annotated[
        bool, typer.Option("--journal", help="Read the journal instead of recordings.")
    ] = False,
    since: Annotated[
        str, typer.Option(help="With --journal: from this time on, such as '1 hour ago'.")
    ] = "",
    until: Annotated[str, typer.Option(help="With --journal: up to this time.")] = "",
    namespace: Annotated[
        str, typer.Option(help="With --journal: the journal namespace that the service logs to.")
    ] = "",
    together: Annotated[
        bool,
        typer.Option(
            "--together", help="Treat all places as one run: its ranks, or prefill and decode."
        ),
    ] = False,
    last: Annotated[
        bool,
        typer.Option("--last", help="Read only the newest run of each folder."),
    ] = False,
    request: Annotated[
        str, typer.Option(help="Judge only what was copied for this request (in SGLang, its rid).")
    ] = "",
    hypothesis: Annotated[
        list[Path] | None,
        typer.Option(
            help="A Python file with a HYPOTHESIS of your own; it is executed. May be repeated."
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Also write the report as one HTML page that needs no network."),
    ] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(help="Also write the run's timeline, to open in ui.perfetto.dev."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Judge every possible cause, one by one, from recordings or the journal.

    Each hypothesis is confirmed, falsified or undecided, with the evidence.
    Recordings lie in HICACHE_DBG_DIR, by default ~/.local/state/hicache-dbg.
    Two places are two runs, and are compared: what is new, gone, changed.
    Exits 1 if a run holds a mismatched tile, a finding or a confirmed cause, 2 if
    no tile of it was compared, so that it proves nothing.

    Examples:
      hicache-dbg diagnose ~/.local/state/hicache-dbg --last
      hicache-dbg diagnose before/ after/
      hicache-dbg diagnose --together rank0.jsonl rank1.jsonl
      hicache-dbg diagnose run/ --request 8c0f6f2b2c9e4f55a5f4c7c0b6b1f3d2
      hicache-dbg diagnose run/ --html run.html --perfetto run.pftrace
      hicache-dbg diagnose --journal --since '1 hour ago'
    """
    places = recordings or []
    of_journal, of_recordings = bool(since or until or namespace), together or last
    _require_one_kind(places, journal, of_journal=of_journal, of_recordings=of_recordings)
    try:
        asked = in_order([*known_hypotheses(), *map(hypothesis_from, hypothesis or [])])
        files: Sequence[Path] = ()
        if journal:
            query = Query(since=since, until=until, namespace=namespace, output="json")
            source: Source = JournalSource([*query.journalctl(), "--no-pager"], _say)
        elif together or len(places) == 1:
            files = chosen_at(places, _say, last=last)
            source = RecordingSource(files, _say)
        elif html or perfetto:
            raise CommandError(
                "--html and --perfetto are of one run: name one place, or --together"
            )
        else:
            _several(places, asked, request, last=last, as_json=as_json)
        joined_files = files if together else ()
        _one(source, asked, joined_files, request, as_json=as_json, html=html, perfetto=perfetto)
    except (JournalMissingError, PartMissingError) as error:
        raise CommandError(str(error), MISSING) from error
    except (RecordingError, JournalError, HtmlError, HypothesisFileError, PerfettoError) as error:
        raise CommandError(str(error)) from error


def _require_one_kind(
    places: Sequence[Path], journal: bool, *, of_journal: bool, of_recordings: bool
) -> None:
    if journal == bool(places):
        where = "" if places else "; recordings are in HICACHE_DBG_DIR (~/.local/state/hicache-dbg)"
        raise CommandError(f"name recordings to read, or --journal, and not both{where}")
    if journal and of_recordings:
        raise CommandError(
            "--together and --last choose among recordings: leave them out with --journal"
        )
    if not journal and of_journal:
        raise CommandError(
            "--since, --until and --namespace choose from the journal: add --journal"
        )


def _one(
    source: Source,
    asked: Sequence[Hypothesis],
    files: Sequence[Path],
    request: str,
    *,
    as_json: bool,
    html: Path | None,
    perfetto: Path | None,
) -> NoReturn:
    """Report on one run, and write its page and timeline if requested.

    Args:
        source: where the events are read from.
        asked: the hypotheses to judge.
        files: the recordings of the run's processes, if they are to be compared with each other.
        request: judge only what was copied for this request; empty for all.
        as_json: print JSON.
        html: where to write the page; None writes none.
        perfetto: where to write the timeline; None writes none.
    """
    processes = processes_of(files, _unsaid)
    with Database(source, request) as database:
        if html or perfetto:
            database.keep()
        evidence = gather(database)
        for finding in joined(evidence, processes) if processes else ():
            evidence.add(finding)
        report = build_report(evidence, asked)
        if html is not None:
            write_html(html, page_of(database, evidence, report, source.name))
            _say(f"{html}: open it in a browser")
        if perfetto is not None:
            slices = _shown(slices_of(database), sum(evidence.paths.values()))
            written = write_perfetto(perfetto, slices, findings_of(evidence.findings))
            _say(f"{perfetto}: {written} slices and instants; open it in https://ui.perfetto.dev")
    if as_json:
        print_json(report)
    else:
        show_report(report)
    raise typer.Exit(of_reports(report))


def _shown(slices: Iterable[Slice], total: int) -> Iterator[Slice]:
    """Yield ``slices``, and show how far it got on a terminal: a million take a minute."""
    with progress() as advance:
        for number, one in enumerate(slices):
            if number % 1000 == 0:
                advance(number, total, "timeline")
            yield one


def _several(
    places: Sequence[Path],
    asked: Sequence[Hypothesis],
    request: str,
    *,
    last: bool,
    as_json: bool,
) -> NoReturn:
    """Report how several runs differ."""
    runs, reports = [], []
    for place in places:
        files = chosen_at([place], _say, last=last)
        with Database(RecordingSource(files, _say), request) as database:
            evidence = gather(database)
            report = build_report(evidence, asked)
        reports.append(report)
        runs.append((str(place), evidence, report.hypotheses))
    comparison = compare(runs)
    if as_json:
        print_json(comparison)
    else:
        show_comparison(Console(markup=False), comparison)
    raise typer.Exit(of_reports(*reports))


def _unsaid(_text: str) -> None:
    """Drop a message that was printed when the recordings were first read."""


def _say(text: str) -> None:
    typer.echo(f"hicache-dbg: {text}", err=True)
