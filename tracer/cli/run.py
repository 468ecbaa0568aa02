"""``hicache-dbg run -- CMD``: set the gate, exec CMD."""

import os
import shutil
from typing import Annotated

import typer

from hicache_dbg.tracer.cli.exits import MISSING, CommandError
from hicache_dbg.tracer.settings import Checksum, Settings, SettingsError

__all__ = ["command"]


def command(
    context: typer.Context,
    checksum: Annotated[
        Checksum | None, typer.Option(help="HICACHE_DBG_CHECKSUM for the command.")
    ] = None,
    sinks: Annotated[
        str | None, typer.Option(help="HICACHE_DBG_SINKS for the command, comma-separated.")
    ] = None,
    record: Annotated[
        str | None, typer.Option(help="Record into this folder (HICACHE_DBG_DIR).")
    ] = None,
) -> None:
    """Run a command with the gate on, as HICACHE_DBG=1 in its environment does.

    Example: hicache-dbg run --sinks stderr -- python serve.py --port 30000
    """
    if not context.args:
        raise CommandError("run needs a command: hicache-dbg run -- python serve.py")
    environ = os.environ | {"HICACHE_DBG": "1"}
    if checksum is not None:
        environ["HICACHE_DBG_CHECKSUM"] = checksum.value
    if record is not None:
        environ["HICACHE_DBG_DIR"] = record
        sinks = f"{sinks},recording" if sinks else environ.get("HICACHE_DBG_SINKS", "recording")
    if sinks is not None:
        environ["HICACHE_DBG_SINKS"] = sinks
    try:
        Settings.from_environ(environ)
    except SettingsError as error:
        raise CommandError(str(error)) from error
    program = shutil.which(context.args[0])
    if program is None:
        raise CommandError(f"{context.args[0]!r} is not a program on PATH", MISSING)
    os.execve(program, context.args, environ)  # noqa: S606 - running the command is the purpose
