"""``hicache-dbg selftest``: inject every fault and require the detectors to name it."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from hicache_dbg.tracer.cli.exits import CORRUPT, OK, CommandError
from hicache_dbg.tracer.cli.json_output import AsJson, print_json
from hicache_dbg.tracer.cli.progress import progress
from hicache_dbg.tracer.words import counted

if TYPE_CHECKING:
    from hicache_dbg.repro.faults.base import Fault
    from hicache_dbg.tracer.cli.selftest_matrix import Row

__all__ = ["command"]


def command(
    fault: Annotated[
        list[str] | None,
        typer.Option(help="Rehearse only this fault. May be repeated.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the order in which queued kernels run.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Inject every fault, run the same case without it, and show what was found.

    Exits 1 if a fault is not found or not named correctly, or if anything is
    found in a run without a fault.

    Examples:
      hicache-dbg selftest
      hicache-dbg selftest --fault sidecar_not_loaded --json
    """
    from hicache_dbg.tracer.cli.selftest_matrix import row_of

    chosen, rows = _chosen(fault or []), []
    with progress() as advance:
        for done, item in enumerate(chosen):
            advance(done, len(chosen), item.name)
            rows.append(row_of(item, seed=seed))
    if as_json:
        print_json({"matrix": rows})
    else:
        _show(rows)
    raise typer.Exit(OK if all(row.good for row in rows) else CORRUPT)


def _chosen(names: list[str]) -> "list[Fault]":
    from hicache_dbg.repro.config import ConfigError
    from hicache_dbg.repro.faults.registry import ALL_FAULTS, fault_named

    try:
        return [fault_named(name) for name in dict.fromkeys(names or ALL_FAULTS)]
    except ConfigError as error:
        raise CommandError(str(error)) from error


def _show(rows: "list[Row]") -> None:
    console = Console(markup=False)
    if not console.is_terminal:
        console.width = 120  # no terminal whose width would apply
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("fault", "class"):
        table.add_column(heading, no_wrap=True)
    for heading in ("found by", "problem"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        wrong = ", ".join(name for name, good in _judged(row) if not good)
        style = "" if row.good else "bold red"
        checks = ", ".join(row.checks) or "nothing"
        table.add_row(row.fault, row.cls, checks, wrong or "-", style=style)
    console.print(table)
    good = sum(row.good for row in rows)
    classes = len({row.cls for row in rows})
    console.print(
        f"{good} of {counted(len(rows), 'fault')} of {counted(classes, 'class')} found and named correctly; "
        f"{counted(sum(row.clean_findings for row in rows), 'finding')} in the clean runs",
        style="bold green" if good == len(rows) else "bold red",
        soft_wrap=True,
    )


def _judged(row: "Row") -> tuple[tuple[str, bool], ...]:
    """Return each possible problem of a row, and whether the row is free of it."""
    return (
        ("not found", row.found),
        ("wrong class", row.named),
        ("wrong pool", row.pool_right),
        ("wrong pages", row.pages_right),
        ("found after the first wrong read", row.before_first_read),
        ("findings in the clean run", not row.clean_findings),
    )
