"""``hicache-dbg faults``: the faults that can be injected, and the classes they belong to."""

from typing import Annotated

import msgspec
import typer

from hicache_dbg.repro.faults.registry import FAULTS

__all__ = ["command"]


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the faults that repro can inject, and the class a detector should name.

    Example: hicache-dbg faults
    """
    rows = [
        {"fault": fault.name, "class": fault.cls.value, "summary": fault.summary}
        for fault in FAULTS.values()
    ]
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode())
        return
    for row in rows:
        typer.echo(f"{row['fault']}  ({row['class']})\n    {row['summary']}")
