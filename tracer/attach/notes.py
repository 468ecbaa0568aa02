"""Notes of what the host did, taken on its threads and judged on the bus's."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial, wraps
from itertools import count
from typing import Any, Protocol

from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.events import Finding
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.settings import Settings

__all__ = ["Desk", "Note", "Notes", "Turn"]

#: Examines what happened; returns None if it only updates state.
Turn = Callable[[], list[Violation] | None]


class _Switch(Protocol):
    @property
    def enabled(self) -> bool: ...


class Desk(Protocol):
    """Where notes go: a :class:`~hicache_dbg.tracer.session.Session`, or something like it."""

    @property
    def errors(self) -> InternalErrors:
        """Counts failures of the tracer itself."""
        ...

    @property
    def settings(self) -> Settings:
        """The gate's settings."""
        ...

    @property
    def probe(self) -> _Switch:
        """Says whether tracing is on."""
        ...

    def check(self, detect: Callable[[], Sequence[Finding]]) -> bool:
        """Run ``detect`` in order; return False if there was no room for it."""
        ...

    def push(self, record: "Note") -> bool:
        """Queue a note; return False if there was no room for it."""
        ...


@dataclass(slots=True, eq=False)  # not frozen: that would more than double the cost of a note
class Note:
    """Something that was done to pages, and the turn that examines it.

    ``by`` is the access it represents, if any; ``about`` is the object of the access. If the turn
    fails, ``start_over`` clears the books, because incomplete books would lead to false findings.
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
        """Return True: there is nothing to wait for."""
        return True

    def events(self) -> Sequence[Finding]:
        """Return what is wrong with it."""
        try:
            found = self.turn()
        except Exception:
            self.start_over()
            raise
        return self.findings(found) if found else ()

    def findings(self, found: Sequence[Violation]) -> Sequence[Finding]:
        """Convert violations that ``turn`` returned to events."""
        return [
            item.finding(pool=self.pool, time_ns=self.time_ns, rank=self.rank, op=self.op)
            for item in found
        ]


class _Holds(Protocol):
    """Collects the holds that an operation takes or releases as one."""

    def add(self, allocator: Any, name: str, page_ids: Any) -> None: ...


class _Here(threading.local):
    """What a thread has yet to note.

    ``turns`` run with its next note, just before that note's own: effects that no other thread can
    see before. ``together`` collects the holds of the operation that the thread begins or ends.
    """

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.together: _Holds | None = None


class Notes:
    """Hands each note to the bus in order, and starts over if one was lost.

    State machines that missed something would make false accusations. After a gap (a full ring, a
    fork, tracing switched off, a failure of ours), ``start_over`` runs on the bus's thread before
    the next note.
    """

    def __init__(self, desk: Desk, start_over: Callable[[], None]) -> None:
        self.errors = desk.errors
        #: Whether the order of accesses is checked: from the first declared access of the model on.
        self.ordered = False
        self._desk = desk
        self._start_over = start_over
        # Gaps are numbered, because two threads may lose a note at the same time.
        self._numbers = count(1)
        self._gap, self._closed = 0, 0
        self._pid = os.getpid()
        self.here = _Here()

    def at(self, place: str) -> AbstractContextManager[object]:
        """Return a context for taking a note.

        A failure is counted under ``place`` and leaves a gap.
        """
        return self.errors.at(place, self.lose)

    def lose(self) -> None:
        """Record a gap: something happened that will not be noted."""
        self._gap = next(self._numbers)

    def closely(self, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return ``make``, whose replacement leaves a gap if an interrupt ends it.

        Nobody knows then whether the call was carried out: the interrupt may come behind it, on the
        way to its note.
        """

        def made(original: Any) -> Any:
            ours = make(original)

            @wraps(ours)
            def call(*args: Any, **kwargs: Any) -> Any:
                try:
                    return ours(*args, **kwargs)
                except Exception:
                    raise
                except BaseException:
                    self._gap = next(self._numbers)  # at once: others may take notes already
                    self.here.turns, self.here.together = [], None
                    raise

            return call

        return made

    def take(
        self,
        turn: Turn,
        pool: str = "",
        op: str = "",
        by: Access | None = None,
        about: object = None,
    ) -> None:
        """Queue ``turn`` to examine what just happened.

        Its violations become findings on ``pool``.
        """
        desk, unsaid = self._desk, self.here.turns
        if unsaid:
            turn = partial(_in_turn, (*unsaid, turn))
            unsaid.clear()
        if self._pid != os.getpid():  # a forked child starts with an empty ring
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
