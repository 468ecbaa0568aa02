"""``hicache-dbg doctor``: what works on this machine."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hicache_dbg.tracer.cli.doctor_checks import examine
from hicache_dbg.tracer.cli.doctor_parts import Part, State
from hicache_dbg.tracer.cli.exits import MISSING, OK, CommandError
from hicache_dbg.tracer.cli.json_output import AsJson, print_json
from hicache_dbg.tracer.settings import Settings, SettingsError

if TYPE_CHECKING:
    from hicache_dbg.tracer.attach.sglang.survey import Row

__all__ = ["command"]

#: What to do if SGLang's pools cannot be imported: it would not start here either.
NO_POOLS = (
    "run this in SGLang's environment and as its user; install what the reason names, or give torch a "
    "folder to write to (HOME, TORCHINDUCTOR_CACHE_DIR)"
)

_STYLE = {State.OK: "green", State.ABSENT: "dim", State.MISSING: "bold red"}


def command(
    sglang: Annotated[
        bool,
        typer.Option(
            "--sglang", help="Instead, show what would be attached to the SGLang installed here."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check this machine: versions, GPU, NVML, pinned memory, journald, ports, folders, extras, cost.

    missing: a HICACHE_DBG or OTEL variable asks for it, and it does not work.
    absent: it is not there, and nothing asks for it.
    Exits 3 if anything is missing; with --sglang, if no host pool class can be attached to.

    Examples:
      HICACHE_DBG_SINKS=journald,otel hicache-dbg doctor
      hicache-dbg doctor --sglang
    """
    parts = _sglang() if sglang else examine()
    missing = [part.name for part in parts if part.state is State.MISSING]
    if as_json:
        print_json({"missing": missing, "parts": parts})
    else:
        Console().print(_table(parts))
        typer.echo(_summary(parts, sglang=sglang))
    raise typer.Exit(MISSING if missing else OK)


def _sglang() -> list[Part]:
    """Return the attachment table of the installed SGLang, as parts."""
    from hicache_dbg.tracer.attach.sglang.native.build import state
    from hicache_dbg.tracer.attach.sglang.survey import survey

    try:
        found = survey()
    except ModuleNotFoundError as error:
        raise CommandError(
            f"{error.name} is not installed here: run this in the environment SGLang runs in",
            MISSING,
        ) from error
    supported = "supported" if found.supported else "not a version the tables were written for"
    states = {"attached": State.OK, "events only": State.ABSENT, "missing": State.ABSENT}
    head = f"{found.version}, {supported}"
    for why in dict.fromkeys(found.unimportable.values()):
        names = [name for name, reason in found.unimportable.items() if reason == why]
        head += f"\ncannot be imported ({why}): {', '.join(names)}"
    try:
        helper = state(Settings.from_environ().native)
    except SettingsError as error:
        helper = str(error)
    head += f"\ncompiled helper: {helper}"
    return [
        Part("sglang", State.OK if found.has_pools else State.MISSING, head, NO_POOLS),
        *(Part(row.name, states[row.state], _detail(row)) for row in found.rows),
    ]


def _detail(row: "Row") -> str:
    """Return the detail of a row, preceded by its state unless that is obvious."""
    return row.detail if row.state == "attached" else f"{row.state}: {row.detail}"


def _summary(parts: list[Part], *, sglang: bool) -> str:
    """Return the summary of the table in one line."""
    if sglang:
        attached = sum(part.state is State.OK for part in parts[1:])
        text = f"{attached} of {len(parts) - 1} places would be attached to"
        none = parts[0].state is State.MISSING
        return f"{text}; no host pool class: nothing would be traced" if none else text
    missing = [part.name for part in parts if part.state is State.MISSING]
    if missing:
        return f"missing: {', '.join(missing)}"
    return "nothing is missing; no HICACHE_DBG or OTEL variable asks for what is absent"


def _table(parts: list[Part]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("part", "state", "detail"):
        table.add_column(heading, overflow="fold")
    for part in parts:
        detail = Text(part.detail)
        if part.advice and part.state is not State.OK:
            detail.append(f"\ndo: {part.advice}", style="cyan")
        table.add_row(part.name, Text(part.state, style=_STYLE[part.state]), detail)
    return table
