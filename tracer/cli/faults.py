"""``hicache-dbg faults``: the faults that are injected, and the classes that they belong to."""

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

if TYPE_CHECKING:
    from hicache_dbg.repro.faults.base import Fault

__all__ = ["command"]


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the faults that selftest rehearses, and the class that a detector should name.

    Those marked with a star can also be injected into sessions: hicache-dbg repro --fault NAME,
    with the option that stands behind the star, if any.

    Example: hicache-dbg faults
    """
    from hicache_dbg.repro.faults.registry import ALL_FAULTS, FAULTS

    rows = [
        {
            "fault": fault.name,
            "class": fault.cls.value,
            "summary": fault.summary,
            "repro": fault.name in FAULTS,
            "needs": _needs(fault),
        }
        for fault in ALL_FAULTS.values()
    ]
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode())
        return
    for row in rows:
        star = f" * {row['needs']}".rstrip() if row["repro"] else ""
        typer.echo(f"{row['fault']}  ({row['class']}){star}\n    {row['summary']}")


def _needs(fault: "Fault") -> str:
    """The option of ``repro`` without which the fault would do nothing."""
    return "--storage file" if fault.stage == "storage" else ""
