"""Raise an interrupt at each place of the tracer's code where Python itself would deliver a signal."""

import dis
import sys
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import hicache_dbg.tracer as package

__all__ = ["interrupted"]

_OURS = str(Path(package.__file__).parent)


class Interrupt(KeyboardInterrupt):
    """The interrupt that is raised."""


@cache
def _names(code: CodeType) -> dict[int, str]:
    return {each.offset: each.opname for each in dis.get_instructions(code)}


def _finalizes(frame: FrameType) -> bool:
    """Return whether an exception would go to nobody: it is a finalizer's."""
    caller = frame.f_back
    return caller is not None and caller.f_code.co_filename == weakref.__file__


class _Planted:
    """Raises at the ``at``th such place: on entry to a function, after a call of C code, in a loop."""

    def __init__(self, at: int) -> None:
        self.left = at
        self._last: dict[FrameType, str] = {}
        self._called: set[FrameType] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "call":
            if frame.f_back is not None:
                self._called.add(frame.f_back)
            frame.f_trace_opcodes = frame.f_code.co_filename.startswith(_OURS)
            frame.f_trace_lines = False
        elif event == "opcode" and self.left:
            name = _names(frame.f_code)[frame.f_lasti]
            before, self._last[frame] = self._last.get(frame, "RESUME"), name
            in_c = before.startswith("CALL") and frame not in self._called
            self._called.discard(frame)
            if (in_c or before in {"RESUME", "JUMP_BACKWARD"}) and not _finalizes(frame):
                self.left -= 1
                if not self.left:
                    raise Interrupt
        return self


def interrupted(step: Callable[[], object], at: int) -> bool:
    """Run ``step``, interrupted at the ``at``th place of ours on this thread.

    Return False if it has no such place: it ran to its end.
    """
    planted, before = _Planted(at), sys.gettrace()
    sys.settrace(planted)
    try:
        step()
    except Interrupt:
        pass
    finally:
        sys.settrace(before)
    return not planted.left
