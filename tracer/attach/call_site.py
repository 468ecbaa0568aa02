"""Who did something, and from where: taken on the hot path, put into words only if it is told."""

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from hicache_dbg.tracer.checks.violation import Access, Frame

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["access"]

#: Frames kept of a call.
DEPTH = 4
_OURS = str(Path(__file__).parent)
#: Lines of code seen so far, those of the attachments as None: as many as the program has calls.
_lines: dict[tuple[str, int], Frame | None] = {}


def access(what: str) -> Access:
    """What the calling thread does, with the innermost frames that are not the attachment's."""
    frames: list[Frame] = []
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to one's caller
    while frame is not None and len(frames) < DEPTH:
        code = frame.f_code
        key = code.co_filename, frame.f_lineno
        try:
            line = _lines[key]
        except KeyError:
            ours = code.co_filename.startswith(_OURS)
            line = _lines[key] = None if ours else Frame(*key, code.co_name)
        if line is not None:
            frames.append(line)
        frame = frame.f_back
    return Access(what, threading.current_thread().name, tuple(frames))
