"""What happened in a schedule, line by line, up to the step that broke."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hicache_dbg.pools.controller import Match
from hicache_dbg.repro.explore_stage import Stage
from hicache_dbg.tracer.attach.hicache_flight import Flight
from hicache_dbg.tracer.attach.hicache_streams import TableTouch, Touch
from hicache_dbg.tracer.attach.notes import Note
from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.words import ranges

if TYPE_CHECKING:
    from hicache_dbg.tracer.events import Finding

__all__ = ["Listing", "Step"]

#: Bookkeeping steps of the engine, listed only if they are part of the conflict.
_QUIET = {"acquire", "release", "lock", "unlock", "pin", "unpin", "begin"}


#: Texts of actions on no page at all.
_NOBODY = {"device ", "host "}


@dataclass(frozen=True, slots=True)
class Step:
    """One line: who did what to which pages; ``mark`` says which part of the conflict it is."""

    number: int
    actor: str
    what: str
    pages: str
    mark: str = ""

    @property
    def quiet(self) -> bool:
        """Whether the line may be omitted."""
        return not self.mark and (self.what in _QUIET or self.pages in _NOBODY)


class Listing:
    """The steps of a schedule; the first violation ends it."""

    def __init__(self, stage: Stage) -> None:
        self.steps: list[Step] = []
        self.broken = False
        self.finding: Finding | None = None
        self.words = ""
        self._stage = stage
        self._made: list[Access | None] = []  # by step

    def add(self, note: Note) -> None:
        """Append a step and run its check."""
        if self.broken:
            return
        if note.by is not None:
            self._append(note.by.actor, note.by.what, _text(note.about), note.by)
        found = note.turn()
        if found:
            self._break(found[0])
            self.finding = note.findings(found[:1])[0]

    def met(self, actor: str, words: str) -> None:
        """Append a step at which a reader observed something wrong."""
        if not self.broken:
            self._append(actor, words, "", None)
            self.steps[-1] = replace(self.steps[-1], mark="this")
            self._stop(words)

    def _break(self, violation: Violation) -> None:
        for mark, access in (("previous", violation.previous), ("this", violation.this)):
            at = next((n for n, made in enumerate(self._made) if made and made is access), None)
            if at is not None:
                self.steps[at] = replace(self.steps[at], mark=mark)
        self._stop(str(violation))

    def _stop(self, words: str) -> None:
        self.broken, self.words = True, words
        self._stage.over = True

    def _append(self, actor: str, what: str, pages: str, access: Access | None) -> None:
        self.steps.append(Step(len(self.steps) + 1, actor, what, pages))
        self._made.append(access)


def _text(about: object) -> str:
    """Return which pages an access refers to."""
    match about:
        case Flight():
            ends = [
                f"host {ranges(about.host.tolist())}",
                f"device {ranges(about.device.tolist())}",
            ]
            return " -> ".join(ends if about.loads else ends[::-1])
        case Match():
            return f"{about.device_pages.size} on the device, {about.host_pages.size} on the host"
        case (str() as tier, np.ndarray() as pages):
            return f"{tier} {ranges(pages.tolist())}"
        case tuple():
            return "; ".join(map(_touched, about))
        case _:
            return ""


def _touched(touch: object) -> str:
    match touch:
        case TableTouch():
            return f"{touch.table} rows {ranges(touch.rows)}"
        case Touch():
            return f"device {ranges(touch.pages)}, layers {ranges(touch.layers)}"
        case _:
            return ""
