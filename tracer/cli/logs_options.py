"""The options of ``logs``: what to ask the journal, and how to print it."""

from dataclasses import dataclass
from typing import Annotated

import typer

from hicache_dbg.tracer.cli.exits import CommandError
from hicache_dbg.tracer.cli.journal_query import ANY, Query
from hicache_dbg.tracer.events import FaultClass, Op

__all__ = ["LogsOptions"]


@dataclass(frozen=True, slots=True)
class LogsOptions:
    """What to ask, and how to print it."""

    pool: Annotated[list[str] | None, typer.Option(help="Only this pool. May be repeated.")] = None
    op: Annotated[list[Op] | None, typer.Option(help="Only this operation. May be repeated.")] = (
        None
    )
    finding: Annotated[
        list[str] | None,
        typer.Option(
            help="Only findings of this class, or 'any'. May be repeated.",
            metavar="CLASS",
            show_default=False,
        ),
    ] = None
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank.")] = None
    since: Annotated[
        str, typer.Option(help="From this time on, as journalctl takes it: '10 min ago'.")
    ] = ""
    until: Annotated[str, typer.Option(help="Up to this time.")] = ""
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines.")] = False
    paths: Annotated[
        bool,
        typer.Option("--paths", help="Print a table of the paths that copies took, with counts."),
    ] = False
    times: Annotated[
        bool, typer.Option("--times", help="Put time, host and process before each line.")
    ] = False
    namespace: Annotated[
        str, typer.Option(help="The journal namespace that the service logs to.")
    ] = ""
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every field.")] = False

    def query(self) -> Query:
        """Return the query that asks for it.

        Raises:
            CommandError: a class is unknown, or options contradict each other.
        """
        query = Query(
            pools=tuple(self.pool or ()),
            ops=tuple(op.value for op in self.op or ()),
            findings=_classes(self.finding or []),
            rank=self.rank,
            since=self.since,
            until=self.until,
            namespace=self.namespace,
            follow=self.follow,
            paths=self.paths,
            output=self._output(),
        )
        if self.paths and (self.follow or self.finding):
            raise CommandError("--paths is a table of all copies: leave --follow and --finding out")
        return query

    def _output(self) -> str:
        if self.paths:
            return "cat"
        return "json" if self.as_json else "short-precise" if self.times else "cat"


def _classes(findings: list[str]) -> tuple[str, ...]:
    known = (ANY, *(fault.value for fault in FaultClass))
    for name in findings:
        if name not in known:
            raise CommandError(f"--finding {name!r} is no class: expected {', '.join(known)}")
    return tuple(findings)
