"""Entry point of ``hicache-dbg``: the one place that maps errors to exit codes."""

import sys
from collections.abc import Sequence
from typing import Any, cast

from hicache_dbg.tracer import autoattach
from hicache_dbg.tracer.cli.exits import INTERRUPTED, MISSING, OK, USAGE, CommandError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's) and return its exit code.

    0 clean, 1 corruption found, 2 usage, 3 a part of the environment is missing, 130 interrupted.
    """
    autoattach.suppress()  # the verbs set the gate themselves
    try:
        return _dispatch(argv)
    except CommandError as error:
        _say(f"hicache-dbg: {error}")
        return error.code
    except KeyboardInterrupt:
        _say("hicache-dbg: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        return OK


def _dispatch(argv: Sequence[str] | None) -> int:
    try:
        import typer

        from hicache_dbg.tracer.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "hicache_dbg":
            raise
        raise CommandError(
            f"the command needs {error.name}, which is not installed: "
            "pip install 'hicache-dbg[cli]'",
            MISSING,
        ) from None
    # typer before 0.20 used click's own class, newer ones carry theirs; the name is the same.
    usage_error: type[Exception] = next(
        c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException"
    )
    command = typer.main.get_command(app)
    arguments = None if argv is None else list(argv)
    try:
        code = command.main(args=arguments, prog_name="hicache-dbg", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except usage_error as error:
        cast("Any", error).show()
        return USAGE
    return code if isinstance(code, int) else OK


def _say(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201 - this is the command's own voice
