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
        session: the session if tracing is on and has begun.
        over: names of the host pools whose copies were given a device pool, by its identity.
    """

    def __init__(
        self, session: Callable[[], SglangSession | None], over: dict[int, set[str]]
    ) -> None:
        self._session = session
        self._over = over

    def session(self) -> SglangSession | None:
        """The session while it traces, else None."""
        session = self._session()
        return session if session is not None and session.probe.enabled else None

    def on(self) -> bool:
        """Whether anything is traced now."""
        return self.session() is not None

    def errors(
        self, place: str, lost: Callable[[], None] | None = None
    ) -> AbstractContextManager[object]:
        """Counts failures of ours at ``place``, and calls ``lost`` after one; none reaches SGLang."""
        session = self._session()
        return contextlib.suppress(Exception) if session is None else session.errors.at(place, lost)

    def pools_over(self, device_pool: object) -> set[str]:
        """Names of the host pools that copy ``device_pool``, as far as they did."""
        return self._over.get(id(device_pool), set())

    def found(self, violations: Sequence[Violation], pool: str, op: str = "") -> None:
        """Make findings of ``violations``, in their turn on the bus."""
        session = self.session()
        if session is None or not violations or not session.settings.traces(pool):
            return
        now, rank = time.time_ns(), session.settings.rank
        self.publish(item.finding(pool=pool, time_ns=now, rank=rank, op=op) for item in violations)

    def publish(self, findings: Iterable[Finding]) -> None:
        """Findings that are complete, in their turn on the bus."""
        session, told = self.session(), tuple(findings)
        if session is not None and told:
            session.check(lambda: told)
