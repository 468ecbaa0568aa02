"""``hicache-dbg run -- CMD``: set the gate, exec CMD."""

import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from hicache_dbg.tracer.cli.exits import MISSING, CommandError
from hicache_dbg.tracer.settings import Checksum, Settings, SettingsError

__all__ = ["command"]


def command(
    context: typer.Context,
    checksum: Annotated[
        Checksum | None, typer.Option(help="How much to digest (HICACHE_DBG_CHECKSUM).")
    ] = None,
    sinks: Annotated[
        str | None, typer.Option(help="Where events go, comma-separated (HICACHE_DBG_SINKS).")
    ] = None,
    record: Annotated[
        str | None,
        typer.Option(
            help="Record into this folder, for hicache-dbg diagnose. It is made if missing."
        ),
    ] = None,
) -> None:
    """Run a command with HICACHE_DBG=1 in its environment.

    Options of hicache-dbg come before the command; all that follows is the command's.

    Example: hicache-dbg run --sinks stderr -- python serve.py --port 30000
    """
    if not context.args:
        raise CommandError("run needs a command: hicache-dbg run -- python serve.py")
    environ = _environ(checksum, sinks, record)
    program = shutil.which(context.args[0])
    if program is None:
        raise CommandError(f"{context.args[0]!r} was not found on PATH, or not executable", MISSING)
    try:
        os.execve(program, context.args, environ)  # noqa: S606 - running the command is the purpose
    except OSError as error:
        raise CommandError(f"cannot run {program}: {error.strerror or error}", MISSING) from error


def _environ(checksum: Checksum | None, sinks: str | None, record: str | None) -> dict[str, str]:
    """Return the environment with the gate set; a recording is added to the named sinks.

    Raises:
        CommandError: a value is not allowed, or the folder cannot be created.
    """
    environ = os.environ | {"HICACHE_DBG": "1"}
    if checksum is not None:
        environ["HICACHE_DBG_CHECKSUM"] = checksum.value
    if record is not None:
        from hicache_dbg.tracer.cli.recorded import made

        environ["HICACHE_DBG_DIR"] = str(made(Path(record)).absolute())
        others = sinks or environ.get("HICACHE_DBG_SINKS", "")
        sinks = ",".join(dict.fromkeys([*filter(None, others.split(",")), "recording"]))
    if sinks is not None:
        environ["HICACHE_DBG_SINKS"] = sinks
    try:
        Settings.from_environ(environ)
    except SettingsError as error:
        raise CommandError(str(error)) from error
    return environ
