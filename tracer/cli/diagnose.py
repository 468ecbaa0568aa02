"""``hicache-dbg diagnose``: read recordings or the journal, print hypotheses and verdicts."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import typer
from rich.console import Console

from hicache_dbg.exporters.html.page import HtmlError, write_html
from hicache_dbg.exporters.parts import PartMissingError
from hicache_dbg.exporters.perfetto import PerfettoError, write_perfetto
from hicache_dbg.exporters.recording_format import RecordingError
from hicache_dbg.exporters.timeline import Slice
from hicache_dbg.tracer.cli.diagnose_options import DiagnoseOptions, Places
from hicache_dbg.tracer.cli.diagnose_output import show_comparison
from hicache_dbg.tracer.cli.exits import MISSING, CommandError, of_reports
from hicache_dbg.tracer.cli.journal_query import Query
from hicache_dbg.tracer.cli.json_output import print_json
from hicache_dbg.tracer.cli.progress import progress
from hicache_dbg.tracer.cli.render import show_report
from hicache_dbg.tracer.cli.verb import takes
from hicache_dbg.tracer.diagnose.compare import Comparison, compare
from hicache_dbg.tracer.diagnose.database import Database, Source
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.gather import gather
from hicache_dbg.tracer.diagnose.hypothesis import Hypothesis, in_order, known_hypotheses
from hicache_dbg.tracer.diagnose.joined import joined, processes_of
from hicache_dbg.tracer.diagnose.journal import JournalError, JournalMissingError, JournalSource
from hicache_dbg.tracer.diagnose.page import page_of
from hicache_dbg.tracer.diagnose.recordings import RecordingSource
from hicache_dbg.tracer.diagnose.report import Report, build_report
from hicache_dbg.tracer.diagnose.runs import chosen_at
from hicache_dbg.tracer.diagnose.timeline import findings_of, slices_of, span_around
from hicache_dbg.tracer.diagnose.user_files import HypothesisFileError, hypothesis_from

__all__ = ["command"]

#: A browser has about 2 GB for a trace, which takes 2 to 4 times the size of its file there:
#: https://perfetto.dev/docs/visualization/large-traces
BROWSER_BYTES = 500 * 10**6


@takes(DiagnoseOptions)
def command(options: DiagnoseOptions, recordings: Places = None) -> None:
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
      hicache-dbg diagnose run/ --perfetto run.pftrace --around slot_reuse
      hicache-dbg diagnose --journal --since '1 hour ago'
    """
    places = recordings or []
    options.check(places)
    try:
        asked = in_order([*known_hypotheses(), *map(hypothesis_from, options.hypothesis or [])])
        if options.journal or options.together or len(places) == 1:
            report = _one(places, asked, options)
            if options.as_json:
                print_json(report)
            else:
                show_report(report, _look(places, options, report))
            raise typer.Exit(of_reports(report))
        comparison, reports = _several(places, asked, options)
    except (JournalMissingError, PartMissingError) as error:
        raise CommandError(str(error), MISSING) from error
    except (RecordingError, JournalError, HtmlError, HypothesisFileError, PerfettoError) as error:
        raise CommandError(str(error)) from error
    if options.as_json:
        print_json(comparison)
    else:
        show_comparison(Console(markup=False), comparison)
    raise typer.Exit(of_reports(*reports))


def _one(places: Sequence[Path], asked: Sequence[Hypothesis], options: DiagnoseOptions) -> Report:
    """Report on one run, and write its page and timeline if requested."""
    source: Source
    files: Sequence[Path] = ()
    if options.journal:
        source = JournalSource([*_query(options).journalctl(), "--no-pager"], _say)
    else:
        files = chosen_at(places, _say, last=options.last)
        source = RecordingSource(files, _say)
    processes = processes_of(files if options.together else (), _unsaid)
    with Database(source, options.request) as database:
        if options.html or options.perfetto:
            database.keep()
        evidence = gather(database)
        for finding in joined(evidence, processes) if processes else ():
            evidence.add(finding)
        report = build_report(evidence, asked)
        if options.html is not None:
            again = _again(places, options)
            write_html(options.html, page_of(database, evidence, report, source.name, again))
            _say(f"{options.html}: open it in a browser")
        if options.perfetto is not None:
            _draw(options.perfetto, database, evidence, options.around)
    return report


def _again(places: Sequence[Path], options: DiagnoseOptions) -> str:
    """Return the command that reads the same events."""
    return shlex.join(["hicache-dbg", "diagnose", *map(str, places), *options.chosen()])


def _look(places: Sequence[Path], options: DiagnoseOptions, report: Report) -> str:
    """Return the command that draws what is wrong, unless it was just drawn."""
    if options.html or options.perfetto:
        return ""
    cut = f" --around {report.findings[0].cls}" if report.findings else ""
    return f"{_again(places, options)} --html report.html --perfetto report.pftrace{cut}"


def _query(options: DiagnoseOptions) -> Query:
    return Query(
        since=options.since, until=options.until, namespace=options.namespace, output="json"
    )


def _draw(path: Path, database: Database, evidence: Evidence, around: str) -> None:
    """Write the timeline: of the whole run, or of what was ``around`` the first such finding."""
    findings, total = evidence.findings, sum(evidence.paths.values())
    span = None
    if around:
        span = span_around(findings, around)
        if span is None:
            known = ", ".join(dict.fromkeys(f.cls.value for f in findings)) or "none"
            raise CommandError(f"--around {around}: no such finding in this run; it has {known}")
    written = write_perfetto(
        path, _shown(slices_of(database, span), total), findings_of(findings, span)
    )
    whole = total + len(findings)
    of_all = "" if written == whole else f" of {whole}, those around the first finding"
    _say(f"{path}: {written} slices and instants{of_all}; open it in https://ui.perfetto.dev")
    if path.stat().st_size > BROWSER_BYTES:
        _say(
            f"{path} may be too large for a browser: cut it with --around CLASS, or serve it with "
            "trace_processor --httpd"
        )


def _shown(slices: Iterable[Slice], total: int) -> Iterator[Slice]:
    """Yield ``slices``, and show how far it got on a terminal."""
    with progress() as advance:
        for number, one in enumerate(slices):
            if number % 1000 == 0:
                advance(number, total, "timeline")
            yield one


def _several(
    places: Sequence[Path], asked: Sequence[Hypothesis], options: DiagnoseOptions
) -> tuple[Comparison, list[Report]]:
    """Return how several runs differ, and the report of each."""
    runs, reports = [], []
    for place in places:
        files = chosen_at([place], _say, last=options.last)
        with Database(RecordingSource(files, _say), options.request) as database:
            evidence = gather(database)
            report = build_report(evidence, asked)
        reports.append(report)
        runs.append((str(place), evidence, report.hypotheses))
    return compare(runs), reports


def _unsaid(_text: str) -> None:
    """Drop a message that was printed when the recordings were first read."""


def _say(text: str) -> None:
    typer.echo(f"hicache-dbg: {text}", err=True)
