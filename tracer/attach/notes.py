"""Notes of what the host did, taken on its threads and judged on the bus's."""

import os
import time
from collections.abc import Callable, Sequence

from hicache_dbg.tracer.checks.violation import Violation
from hicache_dbg.tracer.events import Finding
from hicache_dbg.tracer.session import Session

__all__ = ["Notes"]

#: Looks at what happened; None where there is nothing to say, only to remember.
Turn = Callable[[], list[Violation] | None]


class Notes:
    """Hands each note to the bus in the order taken, and starts over where one was lost.

    State machines that missed something would accuse the innocent: after a gap (a full ring, a
    fork, tracing switched off) ``start_over`` runs on the bus's thread before the next note.
    """

    def __init__(self, session: Session, start_over: Callable[[], None]) -> None:
        self.errors = session.errors
        #: Whether the order of accesses is looked at: once the model has said what it touches.
        self.ordered = False
        self._session = session
        self._start_over = start_over
        self._gap = False
        self._pid = os.getpid()

    def take(self, turn: Turn, pool: str = "", op: str = "") -> None:
        """Let ``turn`` look at what just happened; what it returns becomes findings on ``pool``."""
        session = self._session
        if self._pid != os.getpid():  # a forked child begins with an empty ring
            self._pid, self._gap = os.getpid(), True
        if not session.probe.enabled:
            self._gap = True
            return
        if self._gap:
            self._gap = not session.check(self._forget)
        now, rank = time.time_ns(), session.settings.rank

        def detect() -> Sequence[Finding]:
            return [item.finding(pool=pool, time_ns=now, rank=rank, op=op) for item in turn() or ()]

        if self._gap or not session.check(detect):
            self._gap = True

    def _forget(self) -> Sequence[Finding]:
        self._start_over()
        return ()
