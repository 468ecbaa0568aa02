"""Standard output and error for a command whose exit code must stand, whoever reads what it prints."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from hicache_dbg.tracer.cli.exits import MISSING, CommandError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["patient_streams"]


class _Outlet(io.FileIO):
    """A descriptor whose reader may go away (``| head``): the rest goes nowhere, and nothing fails."""

    #: What a full disk is told for; empty where nobody can be told.
    title = ""

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write ``data``, or let it go.

        Raises:
            CommandError: once, if the output can't be kept.
        """
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            pass
        except OSError as error:
            title, self.title = self.title, ""
            if title:
                raise CommandError(
                    f"cannot write to {title}: {error.strerror or error}; send it somewhere else",
                    MISSING,
                ) from error
        return memoryview(data).nbytes


@contextmanager
def patient_streams() -> Iterator[None]:
    """Let nobody who reads standard output or error, and no encoding, end the command.

    What the encoding does not have is written as its escape. Streams that are closed, or that are no
    descriptor's, stay as they are.
    """
    before = sys.stdout, sys.stderr
    sys.stdout = _patient(sys.stdout, "standard output")
    sys.stderr = _patient(sys.stderr, "")
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = before


def _patient(stream: TextIO, title: str) -> TextIO:
    try:
        number = stream.fileno()
    except (AttributeError, OSError, ValueError):  # None where it is closed
        return stream
    stream.flush()
    outlet = _Outlet(number, "w", closefd=False)
    outlet.title = title
    return io.TextIOWrapper(
        io.BufferedWriter(outlet),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.isatty() or not title,
    )
