"""Entry point of ``hicache-dbg``: the one place that maps errors to exit codes."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's own) and return its exit code.

    0 clean, 1 corruption found, 2 usage, 3 a part of the environment is missing, 70 an internal
    error of the command, 128 + n ended by signal n (130 interrupted, 143 terminated).
    """
    from hicache_dbg.tracer.cli.exits import INTERRUPTED
    from hicache_dbg.tracer.cli.interrupts import kept_interrupts

    with kept_interrupts() as ending:
        try:
            code = _guarded(argv)
        except KeyboardInterrupt:  # it landed behind the command
            code = INTERRUPTED
        ending.over = True
        if code == INTERRUPTED or ending.told:
            code = ending.code
            # Python ends by SIGINT, whatever the code, if an interrupt passed through an exec (of
            # dataclasses, say), until the next exec.
            exec("")  # noqa: S102 - an empty string
            _say(f"hicache-dbg: {ending.word}")
    return code


def _guarded(argv: Sequence[str] | None) -> int:
    """Run the command line; map every error to its exit code."""
    # Import inside the try: it takes long enough to be interrupted.
    from hicache_dbg.tracer.cli.exits import FAULTY, INTERRUPTED, MISSING, CommandError

    try:
        from hicache_dbg.tracer import autoattach
        from hicache_dbg.tracer.cli.streams import patient_streams

        autoattach.suppress()  # the verbs attach by themselves
        with patient_streams():
            return _dispatch(argv)
    except CommandError as error:
        from hicache_dbg.exporters.line import printable

        _say(f"hicache-dbg: {printable(str(error))}")
        return error.code
    except OSError as error:  # such as no temporary folder; verbs handle the errors they expect
        _say(f"hicache-dbg: the system refused: {error}")
        return MISSING
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - Python would exit with 1, which means corruption
        # Python 3.11 wraps an interrupt during class creation (at import) in a RuntimeError.
        if isinstance(error.__cause__, KeyboardInterrupt):
            return INTERRUPTED
        _say(_report(error))
        return FAULTY


def _dispatch(argv: Sequence[str] | None) -> int:
    from hicache_dbg.tracer.cli.exits import MISSING, OK, CommandError

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
    # typer before 0.20 used click's class, newer versions have their own of the same name.
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
        raise CommandError(_misuse(error)) from None
    return code if isinstance(code, int) else OK


def _misuse(error: Any) -> str:
    """Return typer's usage error in one line, with a pointer to the help."""
    what = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    asked = error.ctx.command_path if getattr(error, "ctx", None) else "hicache-dbg"
    return f"{what[0].lower()}{what[1:]} (see {asked} --help)"


def _report(error: Exception) -> str:
    """Return the traceback, with a note that this is not a finding."""
    import traceback

    where = "".join(traceback.format_exception(error))
    return f"{where}hicache-dbg: internal error of the command, not a finding; please report it"


def _say(text: str) -> None:
    if sys.stderr is None:  # closed: print would take standard output
        return
    with suppress(OSError):  # the reader is gone
        print(text, file=sys.stderr)  # noqa: T201 - the command reports its own errors here
