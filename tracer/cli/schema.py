"""``hicache-dbg schema``: events and reports as JSON Schema."""

from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer

from hicache_dbg.tracer.cli.json_output import print_json
from hicache_dbg.tracer.diagnose.compare import Comparison
from hicache_dbg.tracer.diagnose.report import Report
from hicache_dbg.tracer.events import SCHEMA_VERSION, Event

__all__ = ["command"]


class Shape(StrEnum):
    """What a schema is available for."""

    EVENTS = "events"
    REPORT = "report"
    COMPARISON = "comparison"


_KINDS: dict[Shape, tuple[str, Any]] = {
    Shape.EVENTS: (f"hicache-dbg events, schema version {SCHEMA_VERSION}", Event),
    Shape.REPORT: ("hicache-dbg diagnose --json of one run", Report),
    Shape.COMPARISON: ("hicache-dbg diagnose --json of several runs", Comparison),
}


def command(
    of: Annotated[
        Shape,
        typer.Option(
            help="Events of a recording, or what diagnose --json prints for one run or for several."
        ),
    ] = Shape.EVENTS,
) -> None:
    """Print the JSON Schema of events and reports.

    events: the lines of a recording. report, comparison: what diagnose --json
    prints for one run, and for several.

    Examples:
      hicache-dbg schema > events.schema.json
      hicache-dbg schema --of report > report.schema.json
    """
    title, kind = _KINDS[of]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    print_json(head | msgspec.json.schema(kind))
