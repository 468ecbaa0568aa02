"""Find the requests behind an operation: OpenTelemetry spans that are current when it is requested.

A worker executes the operation, where no span is current: it acts for whoever queued the task. One
load may serve several requests, because a page already being loaded is waited for, not loaded
again. Nothing is imported here: a host without OpenTelemetry has no spans.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.loads import Loads
from hicache_dbg.pools.radix import Node
from hicache_dbg.pools.state import CacheState
from hicache_dbg.pools.storage.watched import WatchedWorker
from hicache_dbg.pools.ticket import LoadTicket
from hicache_dbg.pools.transfer import CopyOp
from hicache_dbg.pools.worker import Worker
from hicache_dbg.tracer.attach.patch import Patches
from hicache_dbg.tracer.mirror import SpanIds
from hicache_dbg.tracer.selfcheck import InternalErrors

__all__ = ["RequestSpans", "current_span"]

API = "opentelemetry.trace"


def current_span() -> SpanIds | None:
    """Return trace and span id of the calling thread's current span, sampled or not.

    None without one.
    """
    api: Any = sys.modules.get(API)
    if api is None or not hasattr(api, "get_current_span"):  # absent, or still being imported
        return None
    context = api.get_current_span().get_span_context()
    return (context.trace_id, context.span_id) if context.is_valid else None


@dataclass(slots=True, eq=False)
class _Asked:
    """An operation in flight, and the distinct spans that requested it."""

    op: CopyOp
    spans: list[SpanIds] = field(default_factory=list)

    def add(self, span: SpanIds | None) -> None:
        if span is not None and span not in self.spans:
            self.spans.append(span)


class RequestSpans:
    """Records which spans requested each of the engine's operations, while it is in flight."""

    def __init__(self, errors: InternalErrors) -> None:
        self._errors = errors
        self._patches = Patches()
        #: By identity of the operation, and of its array of host pages, which its Load shares.
        self._asked: dict[int, _Asked] = {}
        self._task = threading.local()

    def attach(self) -> None:
        """Wrap what is not wrapped yet."""
        self._patches.replace(CacheState, "begin", self._around_begin)
        self._patches.replace(CacheState, "end", self._around_end)
        self._patches.replace(Loads, "ticket", self._around_ticket)
        for worker in (Worker, WatchedWorker):
            self._patches.replace(worker, "submit", self._around_submit)

    def detach(self) -> None:
        """Restore the engine's own functions."""
        self._patches.undo()
        self._asked.clear()

    def of(self, op: CopyOp) -> Sequence[SpanIds]:
        """Return the spans behind ``op``, the initiator first.

        Others may join while it is in flight.
        """
        asked = self._asked.get(id(op))
        return () if asked is None else asked.spans

    def here(self) -> tuple[SpanIds, ...]:
        """Return the current span, or those on whose behalf this thread runs a task."""
        span = current_span()
        spans: tuple[SpanIds, ...] = getattr(self._task, "spans", ())
        return spans if span is None else (span,)

    def _around_begin(self, original: Callable[..., CopyOp]) -> Callable[..., CopyOp]:
        def begin(
            state: CacheState, kind: Literal["backup", "load"], host: Ids, device: Ids
        ) -> CopyOp:
            op = original(state, kind, host, device)
            if API in sys.modules:
                with self._errors.at("requests/begin"):
                    asked = self._asked[id(op)] = self._asked[id(host)] = _Asked(op)
                    asked.add(current_span())
            return op

        return begin

    def _around_end(self, original: Callable[..., None]) -> Callable[..., None]:
        def end(state: CacheState, host: Ids, device: Ids) -> None:
            asked = self._asked.pop(id(host), None)
            if asked is not None:
                self._asked.pop(id(asked.op), None)
            original(state, host, device)

        return end

    def _around_ticket(self, original: Callable[..., LoadTicket]) -> Callable[..., LoadTicket]:
        def ticket(loads: Loads, node: Node, owner: int) -> LoadTicket:
            given = original(loads, node, owner)
            if given.loads and API in sys.modules:
                with self._errors.at("requests/ticket"):
                    span = current_span()
                    for load in given.loads:  # the cache's lock is held, so none has ended
                        asked = self._asked.get(id(load.host))
                        if asked is not None:
                            asked.add(span)
            return given

        return ticket

    def _around_submit(self, original: Callable[..., None]) -> Callable[..., None]:
        def submit(worker: Worker | WatchedWorker, task: Callable[[], None]) -> None:
            spans: tuple[SpanIds, ...] = ()
            with self._errors.at("requests/submit"):
                spans = self.here()

            def run() -> None:
                self._task.spans = spans
                try:
                    task()
                finally:
                    self._task.spans = ()

            original(worker, run if spans else task)

        return submit
