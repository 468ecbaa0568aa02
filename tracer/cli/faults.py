"""``hicache-dbg faults``: the faults that are injected, and the classes that they belong to."""

import typer

from hicache_dbg.tracer.cli.json_output import AsJson, print_json
from hicache_dbg.tracer.diagnose.meanings import MEANINGS

__all__ = ["command"]


def command(
    as_json: AsJson = False,
) -> None:
    """List the fault classes, what each means, and the faults of each that selftest injects.

    Faults marked with a star can also be injected into sessions, with
    hicache-dbg repro --fault NAME and the option behind the star, if any.

    Example: hicache-dbg faults
    """
    from hicache_dbg.repro.fault_place import OPTIONS
    from hicache_dbg.repro.faults.registry import ALL_FAULTS, FAULTS

    rows = [
        {
            "fault": fault.name,
            "class": fault.cls.value,
            "class_means": MEANINGS[fault.cls],
            "summary": fault.summary,
            "repro": fault.name in FAULTS,
            "needs": OPTIONS.get(fault.stage, ""),
        }
        for fault in ALL_FAULTS.values()
    ]
    if as_json:
        print_json(rows)
        return
    for cls, meaning in MEANINGS.items():
        typer.echo(f"{cls}: {meaning}")
        for row in rows:
            if row["class"] == cls:
                star = f" * {row['needs']}".rstrip() if row["repro"] else ""
                typer.echo(f"  {row['fault']}{star}\n      {row['summary']}")
