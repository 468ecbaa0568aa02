"""``hicache-dbg dashboards``: export, check and preview the dashboards and rules."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from hicache_dbg.exporters.writing import why_not
from hicache_dbg.tracer.cli.exits import CORRUPT, MISSING, OK, USAGE, CommandError
from hicache_dbg.tracer.cli.json_output import AsJson, print_json
from hicache_dbg.tracer.cli.verbs import Group
from hicache_dbg.tracer.dashboards.boards import BOARDS
from hicache_dbg.tracer.dashboards.document import Dashboard, DocumentError, load
from hicache_dbg.tracer.dashboards.expressions import can_parse, names_in
from hicache_dbg.tracer.dashboards.files import ChangedError, export, shipped
from hicache_dbg.tracer.dashboards.live import (
    AddressError,
    Answer,
    Prometheus,
    PrometheusError,
    ask_all,
)
from hicache_dbg.tracer.dashboards.static import Problem, check_dashboards

__all__ = ["app"]

#: Boards in the order in which an operator looks at them.
_ORDER = {board.uid: place for place, board in enumerate(BOARDS)}

app = typer.Typer(
    cls=Group,
    help="Export, check and preview the Grafana dashboards and Prometheus rules.",
    add_completion=False,
)

_URL = typer.Option(help="Address of a Prometheus, such as http://127.0.0.1:9090.", metavar="URL")
_FOLDER = typer.Option(
    "--dir", help="Use the dashboards and rules of this folder, not the ones shipped."
)


@app.command("export")
def export_command(
    folder: Annotated[Path, typer.Argument(help="Where the files go. It is made if missing.")],
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Overwrite files that were changed since the last export."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write dashboards, rules, provisioning, compose file and systemd drop-ins into a folder.

    Example: hicache-dbg dashboards export monitoring
    """
    try:
        written = [str(path) for path in export(folder, replace=replace)]
    except ChangedError as error:
        raise CommandError(
            f"changed since they were written, and kept: {error}; --replace replaces them"
        ) from error
    except OSError as error:
        place = Path(error.filename or folder)
        raise CommandError(f"cannot write into {folder}: {why_not(place, error)}") from error
    if as_json:
        print_json(written)
    else:
        typer.echo("\n".join(written))


@app.command("check")
def check_command(
    prometheus: Annotated[str, _URL] = "",
    folder: Annotated[Path | None, _FOLDER] = None,
    span: Annotated[
        int, typer.Option(min=1, help="With --prometheus: seconds that queries look back.")
    ] = 3600,
    as_json: AsJson = False,
) -> None:
    """Check every dashboard and rule; with --prometheus, that every query returns series.

    Exits 1 if anything is wrong.

    Example: hicache-dbg dashboards check --prometheus http://127.0.0.1:9090
    """
    from hicache_dbg.tracer.dashboards.vocabulary import VocabularyError, vocabulary

    place = folder or shipped()
    boards = _boards(place)
    try:
        known = vocabulary()
    except VocabularyError as error:
        raise CommandError(str(error)) from error
    problems = check_dashboards(boards, known) + list(_rules(place, known))
    answers: list[Answer] = []
    if prometheus:
        answers = _ask(boards, prometheus, span)
        problems += [
            Problem(a.file, a.where, f"{a.error or 'returns no series'}: {a.query}")
            for a in answers
            if not a.series
        ]
    summary = _summary(boards, answers, problems)
    if as_json:
        print_json({"summary": summary, "problems": problems, "answers": answers})
    else:
        for problem in problems:
            typer.echo(str(problem))
        typer.echo(summary)
    raise typer.Exit(CORRUPT if problems else OK)


@app.command("preview")
def preview_command(
    prometheus: Annotated[str, _URL],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path(
        "dashboards.html"
    ),
    folder: Annotated[Path | None, _FOLDER] = None,
    span: Annotated[int, typer.Option(min=1, help="Seconds to show, up to now.")] = 900,
    as_json: AsJson = False,
) -> None:
    """Write what every panel shows now as one HTML page, which needs no Grafana and no network.

    Example: hicache-dbg dashboards preview --prometheus http://127.0.0.1:9090 -o now.html
    """
    from hicache_dbg.tracer.dashboards.preview import page

    boards = _boards(folder or shipped())
    try:
        output.write_text(page(boards, Prometheus(prometheus), span), encoding="utf-8")
    except PrometheusError as error:
        raise _unanswered(error) from error
    except OSError as error:
        raise CommandError(f"cannot write {output}: {why_not(output, error)}") from error
    panels = sum(len(board.panels) for board in boards)
    if as_json:
        print_json({"file": str(output), "panels": panels})
    else:
        typer.echo(str(output))


def _boards(folder: Path) -> list[Dashboard]:
    paths = sorted((folder / "grafana").glob("*.json"))
    if not paths:
        raise CommandError(
            f"{folder / 'grafana'} holds no dashboard (*.json): name what hicache-dbg dashboards export "
            "wrote"
        )
    try:
        boards = [load(path) for path in paths]
    except DocumentError as error:
        raise CommandError(str(error)) from error
    return sorted(boards, key=lambda board: _ORDER.get(board.uid, len(_ORDER)))


def _rules(folder: Path, known: Any) -> Iterator[Problem]:
    """Yield metrics in the rules that no exporter has, and the complaints of promtool."""
    for path in sorted((folder / "prometheus").glob("*.yml")):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            yield Problem(path.name, "rules", f"cannot be read: {error}")
            continue
        for name in sorted(set(names_in(text)) - set(known)):
            yield Problem(path.name, "rules", f"unknown metric {name}")
    promtool = shutil.which("promtool")
    rules = folder / "prometheus" / "rules.yml"
    if promtool and rules.exists():
        command = [promtool, "check", "rules", str(rules)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own file
        if done.returncode:
            yield Problem(rules.name, "promtool", " ".join((done.stdout + done.stderr).split()))


def _ask(boards: list[Dashboard], url: str, span: int) -> list[Answer]:
    try:
        return list(ask_all(boards, Prometheus(url), f"{span}s"))
    except PrometheusError as error:
        raise _unanswered(error) from error


def _unanswered(error: PrometheusError) -> CommandError:
    return CommandError(str(error), USAGE if isinstance(error, AddressError) else MISSING)


def _summary(boards: list[Dashboard], answers: list[Answer], problems: list[Problem]) -> str:
    panels = sum(len(board.panels) for board in boards)
    queries = sum(len(panel.targets) for board in boards for panel in board.panels)
    parts = [f"{len(boards)} dashboards, {panels} panels, {queries} expressions"]
    parts.append(
        f"{sum(1 for a in answers if a.series)} of {len(answers)} queries return series"
        if answers
        else "no Prometheus asked"
    )
    if not can_parse():
        parts.append("expressions not parsed: pip install promql-parser")
    if shutil.which("promtool") is None:
        parts.append("rules not parsed: promtool is not installed")
    return "; ".join([*parts, f"{len(problems)} problems"])
