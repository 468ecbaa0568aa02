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
#: Calls seen so far, those in the attachments as None: as many as the program has. By the instruction,
#: not by the line: Python counts a long function's lines anew for each who asks, 2 us for 400 of them.
_lines: dict[tuple[str, int, int], Frame | None] = {}


def access(what: str) -> Access:
    """What the calling thread does, with the innermost frames that are not the attachment's."""
    frames: list[Frame] = []
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to one's caller
    while frame is not None and len(frames) < DEPTH:
        code = frame.f_code
        key = code.co_filename, code.co_firstlineno, frame.f_lasti
        try:
            line = _lines[key]
        except KeyError:
            file = code.co_filename
            ours = file.startswith(_OURS)
            line = _lines[key] = None if ours else Frame(file, frame.f_lineno, code.co_name)
        if line is not None:
            frames.append(line)
        frame = frame.f_back
    return Access(what, threading.current_thread().name, tuple(frames))
