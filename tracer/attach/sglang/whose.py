"""The requests that a thread of SGLang is currently working for, by name and span."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from hicache_dbg.tracer.mirror import SpanIds

__all__ = ["HERE", "Request", "request_of"]

_API = "opentelemetry.trace"


class Request(NamedTuple):
    """A request under SGLang's id, and its span if it has one."""

    name: str
    span: SpanIds | None = None


class _Here(threading.local):
    """Per thread: ``asked`` are the requests of a tree call, ``carried`` those of an operation."""

    def __init__(self) -> None:
        self.asked: tuple[Request, ...] = ()
        self.carried: tuple[Request, ...] = ()

    @contextmanager
    def asking(self, requests: tuple[Request, ...]) -> Iterator[None]:
        """Set the requests that the tree is being called for."""
        before, self.asked = self.asked, requests
        try:
            yield
        finally:
            self.asked = before

    @contextmanager
    def carrying(self, requests: tuple[Request, ...]) -> Iterator[None]:
        """Set the requests whose operation is being executed."""
        before, self.carried = self.carried, requests
        try:
            yield
        finally:
            self.carried = before


HERE = _Here()


def request_of(argument: Any) -> Request | None:
    """Return the request that ``argument`` is, names, or has as its ``req``; None if there is none."""
    if isinstance(argument, str):
        return Request(argument, _span(None))
    if not hasattr(argument, "rid"):
        argument = getattr(argument, "req", None)
    name = getattr(argument, "rid", None)
    return Request(str(name), _span(argument)) if name is not None else None


def _span(request: Any) -> SpanIds | None:
    """Return SGLang's own span of a request if it traces requests, or else the current span.

    Nothing is imported here: a process without OpenTelemetry has no spans.
    """
    api: Any = sys.modules.get(_API)
    if not hasattr(api, "get_current_span"):  # absent, or still being imported
        return None
    traced = getattr(getattr(request, "time_stats", None), "trace_ctx", None)
    context = getattr(traced, "root_span_context", None)
    span = api.get_current_span(context).get_span_context()
    return (span.trace_id, span.span_id) if span.is_valid else None
