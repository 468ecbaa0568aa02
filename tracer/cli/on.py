"""``hicache-dbg on``: switch tracing on in a running process."""

import re
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from hicache_dbg.tracer.cli.exits import MISSING, OK, CommandError, of_reports
from hicache_dbg.tracer.cli.json_output import AsJson, print_json
from hicache_dbg.tracer.settings import Checksum
from hicache_dbg.tracer.switch.client import SwitchError, ask
from hicache_dbg.tracer.switch.messages import Ask, Reply

__all__ = ["command", "finish", "replies"]

_SPAN = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
_SECONDS_PER_UNIT = {None: 1, "s": 1, "m": 60, "h": 3600}


def command(
    pid: Annotated[
        int, typer.Option(help="Id of a process that was started with HICACHE_DBG=armed.")
    ],
    checksum: Annotated[
        Checksum | None, typer.Option(help="How much to digest (HICACHE_DBG_CHECKSUM).")
    ] = None,
    sinks: Annotated[
        str, typer.Option(help="Where events go, comma-separated (HICACHE_DBG_SINKS).")
    ] = "",
    pools: Annotated[
        str, typer.Option(help="Globs of the pools to trace (HICACHE_DBG_POOLS).")
    ] = "",
    ops: Annotated[
        str, typer.Option(help="Globs of the operations to trace (HICACHE_DBG_OPS).")
    ] = "",
    span: Annotated[
        str,
        typer.Option(
            "--for",
            help="Trace for this long (60s, 5m), then detach and report; by default until "
            "hicache-dbg off.",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Attach to a running process; with --for, detach after that time and print the report.

    Example: hicache-dbg on --pid 4711 --checksum loads --for 60s
    """
    settings = {
        "HICACHE_DBG_CHECKSUM": checksum.value if checksum else "",
        "HICACHE_DBG_SINKS": sinks,
        "HICACHE_DBG_POOLS": pools,
        "HICACHE_DBG_OPS": ops,
    }
    chosen = {name: value for name, value in settings.items() if value}
    try:
        for reply in replies(pid, Ask(do="on", settings=chosen, for_s=_seconds(span))):
            if reply.report is not None:
                finish(reply, as_json=as_json)
            _say_attached(reply)
    except KeyboardInterrupt:
        typer.echo(
            f"hicache-dbg: process {pid} may still be traced, until its time is over: "
            f"hicache-dbg off --pid {pid} ends that and prints the report",
            err=True,
        )
        raise
    raise typer.Exit(OK)


def _say_attached(reply: Reply) -> None:
    typer.echo(f"hicache-dbg: {reply.text} (attached in {reply.took_s * 1e3:.0f} ms)", err=True)
    for note in reply.notes:
        typer.echo(f"  {note}", err=True)


def replies(pid: int, request: Ask) -> Iterator[Reply]:
    """Yield the replies of process ``pid``.

    Raises:
        CommandError: the process refuses, or cannot be reached.
    """
    try:
        yield from ask(pid, request)
    except SwitchError as error:
        raise CommandError(str(error), MISSING) from error


def finish(reply: Reply, *, as_json: bool) -> None:
    """Print the report of a run that ended, and exit as ``diagnose`` does."""
    from hicache_dbg.tracer.cli.render import show_report
    from hicache_dbg.tracer.diagnose.report import Report

    report = msgspec.convert(reply.report, Report)
    if as_json:
        print_json(report)
    else:
        show_report(report)
    typer.echo(f"hicache-dbg: {reply.text} (detached in {reply.took_s * 1e3:.0f} ms)", err=True)
    raise typer.Exit(of_reports(report))


def _seconds(text: str) -> float:
    """Parse ``60``, ``60s``, ``5m`` or ``1h`` into seconds; 0 if ``text`` is empty."""
    if not text:
        return 0.0
    match = _SPAN.fullmatch(text)
    if match is None or not float(match[1]):
        raise CommandError(f"--for is {text!r}, expected a time such as 60s, 5m or 1h")
    return float(match[1]) * _SECONDS_PER_UNIT[match[2]]
