"""``hicache-dbg logs``: build the journalctl query for what you ask, and run it."""

import shlex
import shutil
import subprocess
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from hicache_dbg.exporters.fields import IDENTIFIER
from hicache_dbg.tracer.cli.exits import MISSING, CommandError
from hicache_dbg.tracer.cli.json_output import print_json
from hicache_dbg.tracer.events import FaultClass, Op

__all__ = ["Query", "command"]

ANY = "any"
#: Turns the lines of copies into a table of paths; the page counts are cut, as they vary per copy.
TABLE = "grep -F '[HICACHE_DBG]' | sed -E 's/ h=[0-9]+ d=[0-9]+//' | sort | uniq -c"


@dataclass(frozen=True, slots=True)
class Query:
    """A journal query; values of one field are alternatives, and all given fields must match."""

    pools: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    rank: int | None = None
    since: str = ""
    until: str = ""
    namespace: str = ""
    follow: bool = False
    paths: bool = False
    output: str = "cat"

    def journalctl(self) -> list[str]:
        """Return the arguments of the journalctl call, starting with the program's name."""
        options = ["journalctl", "-o", self.output, "-t", IDENTIFIER]
        if self.output == "json":
            options.append("--all")  # else a value of more than 4096 bytes is null
        for name, value in (
            ("--namespace", self.namespace),
            ("--since", self.since),
            ("--until", self.until),
        ):
            if value:
                options.append(f"{name}={value}")
        if self.follow:
            options.append("--follow")
        return options + self._matches()

    def _matches(self) -> list[str]:
        event = "copied" if self.paths else "finding" if ANY in self.findings else ""
        classes = () if event else self.findings
        rank = () if self.rank is None else (str(self.rank),)
        wanted = {
            "HICACHE_EVENT": (event,) if event else (),
            "HICACHE_FINDING": classes,
            "HICACHE_POOL": self.pools,
            "HICACHE_OP": self.ops,
            "HICACHE_RANK": rank,
        }
        return [f"{name}={value}" for name, values in wanted.items() for value in values]


def command(
    pool: Annotated[list[str] | None, typer.Option(help="Only this pool. May be repeated.")] = None,
    op: Annotated[
        list[Op] | None, typer.Option(help="Only this operation. May be repeated.")
    ] = None,
    finding: Annotated[
        list[str] | None,
        typer.Option(
            help="Only findings of this class, or 'any'. May be repeated.",
            metavar="CLASS",
            show_default=False,
        ),
    ] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank.")] = None,
    since: Annotated[
        str, typer.Option(help="From this time on, as journalctl takes it: '10 min ago'.")
    ] = "",
    until: Annotated[str, typer.Option(help="Up to this time.")] = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines.")
    ] = False,
    paths: Annotated[
        bool,
        typer.Option("--paths", help="Print a table of the paths that copies took, with counts."),
    ] = False,
    times: Annotated[
        bool, typer.Option("--times", help="Put time, host and process before each line.")
    ] = False,
    namespace: Annotated[
        str, typer.Option(help="The journal namespace that the service logs to.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every field.")] = False,
) -> None:
    """Query the journal for copies and findings.

    The journalctl query is printed on standard error, to be copied and changed,
    and then run.

    Examples:
      hicache-dbg logs --finding any --since '1 hour ago'
      hicache-dbg logs --pool index_k --op load --follow
      hicache-dbg logs --paths --namespace hicache
    """
    query = Query(
        pools=tuple(pool or ()),
        ops=tuple(one.value for one in op or ()),
        findings=_classes(finding or []),
        rank=rank,
        since=since,
        until=until,
        namespace=namespace,
        follow=follow,
        paths=paths,
        output="cat" if paths else "json" if as_json else "short-precise" if times else "cat",
    )
    if paths and (follow or query.findings):
        raise CommandError("--paths is a table of all copies: leave --follow and --finding out")
    if shutil.which("journalctl") is None:
        raise CommandError(
            "journalctl is not installed, so there is no journal to ask; "
            "set HICACHE_DBG_SINKS=recording and use hicache-dbg diagnose",
            MISSING,
        )
    if paths:
        _table(query, as_json=as_json)
    else:
        _run(query)


def _classes(findings: list[str]) -> tuple[str, ...]:
    known = (ANY, *(fault.value for fault in FaultClass))
    for name in findings:
        if name not in known:
            raise CommandError(f"--finding {name!r} is no class: expected {', '.join(known)}")
    return tuple(findings)


def _run(query: Query) -> None:
    arguments = query.journalctl()
    typer.echo(shlex.join(arguments), err=True)
    if query.follow or _holds_any(arguments):
        _succeeded(subprocess.run(arguments, check=False).returncode)  # noqa: S603 - the query is the purpose
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
            TABLE, shell=True, check=False, stdin=journal.stdout, capture_output=True, text=True
        ).stdout
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


def _succeeded(status: int) -> None:
    """Raise unless the status is 0; journalctl has already printed the reason."""
    if status:
        raise CommandError(f"journalctl ended with status {status}")
