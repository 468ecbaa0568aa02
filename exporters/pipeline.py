"""From event to text: a pipeline of small structlog processors.

A pipeline is ``structlog.wrap_logger`` around a logger that returns its argument. Everything is
passed explicitly and ``structlog.configure`` is never called: the host's configuration neither
affects ours nor is affected by it. A processor that raises ``structlog.DropEvent`` removes the
event.
"""

from collections.abc import Callable
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from hicache_dbg.exporters.fields import IDENTIFIER, MESSAGE_IDS, PRIORITIES, fields
from hicache_dbg.exporters.line import line
from hicache_dbg.tracer.events import Copied, Event, Health, Stated
from hicache_dbg.tracer.settings import Lines

__all__ = [
    "FirstOfPath",
    "Summaries",
    "add_fields",
    "add_line",
    "add_syslog",
    "pipeline",
    "selection",
    "take_line",
]

SUMMARY_INTERVAL_S = 60.0


class _Renderer(structlog.BoundLoggerBase):
    """Runs the processors on one event and returns the last one's result."""

    def render(self, event: Event) -> Any:
        return self._proxy_to_logger("msg", None, record=event)


def pipeline(*processors: Processor) -> Callable[[Event], Any]:
    """Return a function from an event to what the last of ``processors`` returns (str or bytes).

    It returns None for an event that a processor dropped. Processors find the event under
    ``record`` and add their own keys.
    """
    lazy = structlog.wrap_logger(
        structlog.ReturnLogger(),
        processors=list(processors),
        wrapper_class=_Renderer,
        context_class=dict,
        cache_logger_on_first_use=True,
    )
    bound: _Renderer = lazy.bind()
    return bound.render


def add_line(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add the event's line as ``MESSAGE``."""
    event["MESSAGE"] = line(event["record"])
    return event


def add_syslog(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add priority (a decimal number), identifier and the event type's id."""
    kind = type(event["record"])
    event["PRIORITY"] = str(PRIORITIES[kind])
    event["SYSLOG_IDENTIFIER"] = IDENTIFIER
    event["MESSAGE_ID"] = MESSAGE_IDS[kind]
    return event


def add_fields(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add the ``HICACHE_*`` fields."""
    event.update(fields(event["record"]))
    return event


def take_line(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    """End the pipeline with the line alone."""
    message: str = event["MESSAGE"]
    return message


class FirstOfPath:
    """Passes a copy only the first time its path is taken.

    A path is a pool, an operation, the branch that ran and a layout: a few dozen in all.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[str, str, bool, str]] = set()

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """Drop a copy whose path was seen before."""
        record = event["record"]
        if isinstance(record, Stated):  # only for joining recordings, not for human readers
            raise structlog.DropEvent
        if isinstance(record, Copied):
            path = (record.pool, record.op.value, record.token_granular, record.layout)
            if path in self._seen:
                raise structlog.DropEvent
            self._seen.add(path)
        return event


class Summaries:
    """Passes one health event per rank and interval, and always the closing one.

    The interval is measured by the events' own times.
    """

    def __init__(self, interval_s: float = SUMMARY_INTERVAL_S) -> None:
        # Heartbeats are never exactly a minute apart: without slack every second one is dropped.
        self._interval_ns = int(interval_s * 0.9e9)
        self._last: dict[int, int] = {}

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """Drop a health event that follows the last one of its rank too soon."""
        record = event["record"]
        if isinstance(record, Health):
            last = self._last.get(record.rank)
            # A clock that was set back must not silence later events.
            soon = last is not None and 0 <= record.time_ns - last < self._interval_ns
            if soon and not record.closing:
                raise structlog.DropEvent
            self._last[record.rank] = record.time_ns
        return event


def selection(lines: Lines) -> list[Processor]:
    """Return the processors that choose which events get a line."""
    return [FirstOfPath(), Summaries()] if lines is Lines.PATHS else []
