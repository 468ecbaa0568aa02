"""What the watchers of gates, allocators, storage and transfers report through."""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

from hicache_dbg.tracer.attach.sglang.session import SglangSession
from hicache_dbg.tracer.checks.violation import Violation
from hicache_dbg.tracer.events import Finding

__all__ = ["Say"]


class Say:
    """The session, once there is one, and which host pools copy a device pool.

    Args:
        session: returns the session if tracing is on and has started.
        over: names of the host pools that have copied a device pool, by its identity.
    """

    def __init__(
        self, session: Callable[[], SglangSession | None], over: dict[int, set[str]]
    ) -> None:
        self._session = session
        self._over = over

    def session(self) -> SglangSession | None:
        """Return the session while it traces, else None."""
        session = self._session()
        return session if session is not None and session.probe.enabled else None

    def on(self) -> bool:
        """Return whether anything is being traced."""
        return self.session() is not None

    def errors(
        self, place: str, lost: Callable[[], None] | None = None
    ) -> AbstractContextManager[object]:
        """Return a context that counts our failures at ``place`` and keeps them from SGLang.

        ``lost`` is called after a failure.
        """
        session = self._session()
        return contextlib.suppress(Exception) if session is None else session.errors.at(place, lost)

    def pools_over(self, device_pool: object) -> set[str]:
        """Return the names of the host pools that have copied ``device_pool`` so far."""
        return self._over.get(id(device_pool), set())

    def found(self, violations: Sequence[Violation], pool: str, op: str = "") -> None:
        """Publish ``violations`` as findings, in order on the bus."""
        session = self.session()
        if session is None or not violations or not session.settings.traces(pool):
            return
        now, rank = time.time_ns(), session.settings.rank
        self.publish(item.finding(pool=pool, time_ns=now, rank=rank, op=op) for item in violations)

    def publish(self, findings: Iterable[Finding]) -> None:
        """Publish complete findings, in order on the bus."""
        session = self.session()
        if session is not None:
            session.tell(findings)
