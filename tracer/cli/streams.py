"""Standard streams that cannot change the exit code, whatever their reader does."""

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
    """A descriptor that drops output silently once its reader is gone (``| head``)."""

    #: The stream's name in the error message of a failed write; empty suppresses the error.
    title = ""

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write ``data``, or drop it if nobody reads.

        Raises:
            CommandError: once, if the output can't be stored.
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
    """Keep a vanished reader or a limited encoding from ending the command.

    Characters that the encoding lacks are written as escapes. Streams that are closed, or that have
    no descriptor, stay as they are.
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
