"""``hicache-dbg logs``: build the journalctl query for what you ask, and run it."""

import select
import shlex
import shutil
import subprocess
from typing import Any

import typer

from hicache_dbg.tracer.cli.exits import MISSING, CommandError
from hicache_dbg.tracer.cli.journal_query import Query
from hicache_dbg.tracer.cli.json_output import print_json
from hicache_dbg.tracer.cli.logs_options import LogsOptions
from hicache_dbg.tracer.cli.verb import takes

__all__ = ["command"]

#: Turns the lines of copies into a table of paths; the page counts are cut, as they vary per copy.
#: One line with odd bytes must not make a binary file of all (-a).
TABLE = "grep -aF '[HICACHE_DBG]' | sed -E 's/ h=[0-9]+ d=[0-9]+//' | sort | uniq -c"

STANDARD_OUTPUT = 1


@takes(LogsOptions)
def command(options: LogsOptions) -> None:
    """Query the journal for copies and findings.

    The journalctl query is printed on standard error, to be copied and changed,
    and then run.

    Examples:
      hicache-dbg logs --finding any --since '1 hour ago'
      hicache-dbg logs --pool index_k --op load --follow
      hicache-dbg logs --paths --namespace hicache
    """
    query = options.query()
    if shutil.which("journalctl") is None:
        raise CommandError(
            "journalctl is not installed, so there is no journal to ask; "
            "set HICACHE_DBG_SINKS=recording and use hicache-dbg diagnose",
            MISSING,
        )
    if options.paths:
        _table(query, as_json=options.as_json)
    else:
        _run(query)


def _run(query: Query) -> None:
    arguments = query.journalctl()
    typer.echo(shlex.join(arguments), err=True)
    if query.follow or _holds_any(arguments):
        status = subprocess.run(arguments, check=False).returncode  # noqa: S603 - the query is the purpose
        if not _nobody_reads():  # that is no failure (| head)
            _succeeded(status)
    else:
        _say_nothing_is_there("line")


def _holds_any(arguments: list[str]) -> bool:
    """Return whether the query matches anything; journalctl prints nothing if not."""
    probe = [*arguments, "--lines=1", "--quiet"]
    done = subprocess.run(probe, check=False, stdout=subprocess.PIPE)  # noqa: S603 - as above
    _succeeded(done.returncode)
    return bool(done.stdout)


def _say_nothing_is_there(what: str) -> None:
    typer.echo(
        f"hicache-dbg: the journal holds no such {what}; hicache-dbg doctor says whether lines reach it",
        err=True,
    )


def _table(query: Query, *, as_json: bool) -> None:
    """Pipe journalctl into the command that counts paths."""
    arguments = query.journalctl()
    typer.echo(f"{shlex.join(arguments)} | {TABLE}", err=True)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as journal:  # noqa: S603 - as above
        table = subprocess.run(  # noqa: S602 - a constant
            TABLE, shell=True, check=False, stdin=journal.stdout, stdout=subprocess.PIPE
        ).stdout.decode(errors="backslashreplace")
    _succeeded(journal.returncode)
    if as_json:
        rows = map(_row, table.splitlines())
        print_json([row for row in rows if row is not None])
    elif table:
        typer.echo(table, nl=False)
    else:
        _say_nothing_is_there("copy")


def _row(line: str) -> dict[str, Any] | None:
    """Parse a line of the table into the fields of the log line and the count.

    Return None for a foreign entry: anyone may write to the journal.
    """
    count, _, path = line.strip().partition(" ")
    try:
        named: dict[str, Any] = dict(word.split("=", 1) for word in shlex.split(path)[1:])
        return named | {
            "token_granular": named["token_granular"] == str(True),
            "slot_page": int(named["slot_page"]),
            "count": int(count),
        }
    except (KeyError, ValueError):
        return None


def _nobody_reads() -> bool:
    """Return whether the reader of standard output is gone.

    What journalctl ended with does not tell: where SIGPIPE is blocked, it is an ordinary error.
    """
    output = select.poll()
    output.register(STANDARD_OUTPUT, 0)
    return any(state & select.POLLERR for _, state in output.poll(0))


def _succeeded(status: int) -> None:
    """Raise unless the status is 0; journalctl, or what reads it here, has already printed the reason."""
    if status:
        raise CommandError(f"journalctl ended with status {status}")
