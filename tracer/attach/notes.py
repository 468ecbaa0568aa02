"""Notes of what the host did, taken on its threads and judged on the bus's."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Protocol

from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.events import Finding
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.settings import Settings

__all__ = ["Desk", "Note", "Notes", "Turn"]

#: Looks at what happened; None where there is nothing to say, only to remember.
Turn = Callable[[], list[Violation] | None]


class _Switch(Protocol):
    @property
    def enabled(self) -> bool: ...


class Desk(Protocol):
    """Where notes go: a :class:`~hicache_dbg.tracer.session.Session`, or who judges them at once."""

    @property
    def errors(self) -> InternalErrors:
        """Where failures of the tracer itself are counted."""
        ...

    @property
    def settings(self) -> Settings:
        """The gate."""
        ...

    @property
    def probe(self) -> _Switch:
        """Whether anything is traced now."""
        ...

    def check(self, detect: Callable[[], Sequence[Finding]]) -> bool:
        """Run ``detect`` in its turn; False if there was no room for it."""
        ...

    def push(self, record: "Note") -> bool:
        """Let a note have its turn; False if there was no room for it."""
        ...


@dataclass(slots=True, eq=False)  # not frozen: that costs more than all the rest of taking one
class Note:
    """Something that was done to pages, and who looks at it.

    ``by`` is the access that it is, where it is one; ``about`` what it is an access to. Where looking
    at it fails, ``start_over`` has the books forget: they would accuse those who come next.
    """

    turn: Turn
    pool: str
    op: str
    by: Access | None
    about: object
    time_ns: int
    rank: int
    start_over: Callable[[], None]

    def ready(self) -> bool:
        """Nothing is waited for."""
        return True

    def events(self) -> Sequence[Finding]:
        """What is wrong with it."""
        try:
            found = self.turn()
        except Exception:
            self.start_over()
            raise
        return self.findings(found) if found else ()

    def findings(self, found: Sequence[Violation]) -> Sequence[Finding]:
        """Violations that ``turn`` returned, as events."""
        return [
            item.finding(pool=self.pool, time_ns=self.time_ns, rank=self.rank, op=self.op)
            for item in found
        ]


class _Unsaid(threading.local):
    def __init__(self) -> None:
        self.turns: list[Turn] = []


class Notes:
    """Hands each note to the bus in the order taken, and starts over where one was lost.

    State machines that missed something would accuse the innocent: after a gap (a full ring, a
    fork, tracing switched off, a failure of ours) ``start_over`` runs on the bus's thread before the
    next note.
    """

    def __init__(self, desk: Desk, start_over: Callable[[], None]) -> None:
        self.errors = desk.errors
        #: Whether the order of accesses is looked at: once the model has said what it touches.
        self.ordered = False
        self._desk = desk
        self._start_over = start_over
        # Numbered, for two threads may each lose a note at the same time.
        self._numbers = count(1)
        self._gap, self._closed = 0, 0
        self._pid = os.getpid()
        self._unsaid = _Unsaid()

    def at(self, place: str) -> AbstractContextManager[object]:
        """A context in which a note is made; a failure is counted under ``place``, and leaves a gap."""
        return self.errors.at(place, self.lose)

    def lose(self) -> None:
        """Something happened that will not be noted."""
        self._gap = next(self._numbers)

    @property
    def unsaid(self) -> list[Turn]:
        """Turns that go with the calling thread's next note, before its own.

        For what nobody can know of before this thread does something else that is noted.
        """
        return self._unsaid.turns

    def take(
        self,
        turn: Turn,
        pool: str = "",
        op: str = "",
        by: Access | None = None,
        about: object = None,
    ) -> None:
        """Let ``turn`` look at what just happened; what it returns becomes findings on ``pool``."""
        desk, unsaid = self._desk, self._unsaid.turns
        if unsaid:
            turn = partial(_in_turn, (*unsaid, turn))
            unsaid.clear()
        if self._pid != os.getpid():  # a forked child begins with an empty ring
            self._pid = os.getpid()
            self.lose()
        if not desk.probe.enabled:
            self.lose()
            return
        if (gap := self._gap) != self._closed:
            if not desk.check(self._forget):
                return
            self._closed = gap
        rank, start_over = desk.settings.rank, self._start_over
        if not desk.push(Note(turn, pool, op, by, about, time.time_ns(), rank, start_over)):
            self.lose()

    def _forget(self) -> Sequence[Finding]:
        self._start_over()
        return ()


def _in_turn(turns: Sequence[Turn]) -> list[Violation]:
    return [violation for turn in turns for violation in turn() or ()]
