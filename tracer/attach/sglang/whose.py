"""The requests that a thread of SGLang works for at the moment, by name and span."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from hicache_dbg.tracer.mirror import SpanIds

__all__ = ["HERE", "Request", "request_of"]

_API = "opentelemetry.trace"


class Request(NamedTuple):
    """A request as SGLang calls it, and its span where it has one."""

    name: str
    span: SpanIds | None = None


class _Here(threading.local):
    """``asked``: for which the tree is called; ``carried``: whose operation is carried out."""

    def __init__(self) -> None:
        self.asked: tuple[Request, ...] = ()
        self.carried: tuple[Request, ...] = ()

    @contextmanager
    def asking(self, requests: tuple[Request, ...]) -> Iterator[None]:
        """While the tree is called for these."""
        before, self.asked = self.asked, requests
        try:
            yield
        finally:
            self.asked = before

    @contextmanager
    def carrying(self, requests: tuple[Request, ...]) -> Iterator[None]:
        """While an operation is carried out for these."""
        before, self.carried = self.carried, requests
        try:
            yield
        finally:
            self.carried = before


HERE = _Here()


def request_of(told: Any) -> Request | None:
    """The request that ``told`` is, names, or has as its ``req``; None if there is none."""
    if isinstance(told, str):
        return Request(told, _span(None))
    if not hasattr(told, "rid"):
        told = getattr(told, "req", None)
    name = getattr(told, "rid", None)
    return Request(str(name), _span(told)) if name is not None else None


def _span(request: Any) -> SpanIds | None:
    """SGLang's own span of a request where it traces requests, or else the span that is current.

    Nothing is imported here: a process without OpenTelemetry has no spans.
    """
    api: Any = sys.modules.get(_API)
    if not hasattr(api, "get_current_span"):  # absent, or about to be imported
        return None
    traced = getattr(getattr(request, "time_stats", None), "trace_ctx", None)
    context = getattr(traced, "root_span_context", None)
    span = api.get_current_span(context).get_span_context()
    return (span.trace_id, span.span_id) if span.is_valid else None
