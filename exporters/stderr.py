"""Events as lines on a text stream, for a person reading a terminal or a container's log."""

import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from hicache_dbg.exporters.pipeline import add_line, pipeline, selection, take_line
from hicache_dbg.tracer.events import Event
from hicache_dbg.tracer.settings import Lines
from hicache_dbg.tracer.sink import SinkError
from hicache_dbg.tracer.words import counted

__all__ = ["StderrSink"]


class StderrSink:
    """Writes one line per event, each batch in one write.

    Args:
        lines: ``paths`` for a line the first time a path is taken, every finding and a summary a
            minute; or ``all``.
        stream: where lines go; by default the process's standard error at the time of writing.
    """

    name = "stderr"

    def __init__(self, lines: Lines = Lines.PATHS, *, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._render: Callable[[Event], str | None] = pipeline(
            *selection(lines), add_line, take_line
        )

    def emit(self, events: Sequence[Event]) -> None:
        """Write the lines of ``events``; if the stream is closed or full, the batch is lost."""
        lines = [text for text in map(self._render, events) if text is not None]
        if not lines:
            return
        stream = sys.stderr if self._stream is None else self._stream
        try:
            stream.write("".join(f"{text}\n" for text in lines))
            stream.flush()
        except (OSError, ValueError) as error:
            raise SinkError(
                f"standard error: {error}; {counted(len(lines), 'line')} lost",
                reason="io",
                lost=len(lines),
            ) from error

    def close(self) -> None:
        """Leave the stream open: it belongs to the process."""
