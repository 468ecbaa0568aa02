"""Events as OpenTelemetry spans, metrics and log records.

One span per operation, with the event's own times. An operation serves many requests, so its span
links to theirs instead of being the child of one. A finding is an event on the span of its
operation and a log record in that span.
"""

import logging
import os
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry._logs import SeverityNumber
from opentelemetry.context import Context
from opentelemetry.metrics import Histogram, Meter
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, TraceFlags

from hicache_dbg.exporters.closed_sets import DURATION_BUCKETS_S
from hicache_dbg.exporters.encoding import whole
from hicache_dbg.exporters.line import line
from hicache_dbg.exporters.otel_logs import emit_record
from hicache_dbg.exporters.otel_providers import DURATION, Telemetry, takes_advice
from hicache_dbg.tracer.events import Copied, Event, Finding, Health, Outcome, Started
from hicache_dbg.tracer.sink import Pace, SinkError

__all__ = ["OtelSink"]

_log = logging.getLogger(__name__)

SPANS_REMEMBERED = 4096
#: Attributes that distinguish an operation's metrics.
PATH = (
    *("hicache.pool", "hicache.op", "hicache.src", "hicache.dst"),
    *("hicache.layout", "hicache.token_granular", "hicache.rank"),
)

_OpKey = tuple[int, int]
#: Values of a path's attributes, in the order of :func:`_path_attributes`.
_Path = tuple[str | int | bool, ...]


class OtelSink:
    """Turns events into spans, metrics and log records, and delivers them.

    Args:
        environ: where to read ``OTEL_*``; by default the process's environment.
        close_limit_s: the longest time that closing may take.

    Raises:
        OtelConfigError: the environment asks for an exporter that is not available.
    """

    name = "otel"

    #: A span costs thirty times as much as a counter, an export request even more, and the GIL is
    #: needed by the host.
    pace = Pace(rest=1.0, gather_s=0.5)

    def __init__(
        self, *, environ: Mapping[str, str] | None = None, close_limit_s: float = 2.0
    ) -> None:
        self._environ = os.environ if environ is None else environ
        self._close_limit_s = close_limit_s
        self._begin()
        if unsent := self._telemetry.unsent:
            _log.warning(
                "hicache-dbg: sink otel has nowhere to send %s: set OTEL_EXPORTER_OTLP_ENDPOINT, such as "
                "http://127.0.0.1:4318, unless this process sets up OpenTelemetry's providers itself later",
                " and ".join(unsent),
            )

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._telemetry = Telemetry(self._environ)
        self._spans: OrderedDict[_OpKey, SpanContext] = OrderedDict()
        meter = self._telemetry.meter
        self._duration = _duration_histogram(meter)
        self._io = meter.create_counter("hicache.copy.io", "By", "Bytes that operations moved")
        self._tiles = meter.create_counter(
            "hicache.tile.count", "{tile}", "Tiles moved, by what is known of them"
        )
        self._findings = meter.create_counter(
            "hicache.finding.count", "{finding}", "Findings by fault class"
        )
        self._lost = meter.create_counter(
            "hicache.event.lost", "{event}", "Events that a sink lost, by reason"
        )
        self._lost_before: dict[tuple[int, str], int] = {}

    def emit(self, events: Sequence[Event]) -> None:
        """Deliver ``events``.

        If a private exporter fails, the batch's spans or records are lost.
        """
        if os.getpid() != self._pid:
            # A forked child must not use its parent's connections.
            self._begin()
        findings: defaultdict[_OpKey, list[Finding]] = defaultdict(list)
        for event in events:
            if isinstance(event, Finding) and event.op_id:
                findings[event.rank, event.op_id].append(event)
        copies = [event for event in events if isinstance(event, Copied)]
        for copy in copies:
            self._copied(copy, findings.get((copy.rank, copy.op_id), ()) if copy.op_id else ())
        self._count(copies)
        # After all spans, because a finding may precede the operation it is about.
        for event in events:
            if isinstance(event, Finding):
                self._finding(event)
            elif isinstance(event, Started):
                self._log(event, "hicache.started", SeverityNumber.INFO, {}, Context())
            elif isinstance(event, Health):
                self._health(event)
        lost, why = self._telemetry.deliver()
        if lost:
            raise SinkError(
                f"OpenTelemetry export: {why}; {lost} of {len(events)} events not delivered",
                reason="export",
                lost=lost,
            )

    def close(self) -> None:
        """Flush the metrics and stop what this sink built, within the limit."""
        self._telemetry.shutdown(self._close_limit_s)

    def _copied(self, event: Copied, findings: Sequence[Finding]) -> None:
        span = self._telemetry.tracer.start_span(
            f"hicache.{event.op.value}",
            context=Context(),
            kind=SpanKind.INTERNAL,
            attributes=_span_attributes(event),
            links=_links(event),
            # An event's time is the end of its operation; viewers hide spans of zero length.
            start_time=event.time_ns - max(1, round(event.duration_us * 1000)),
        )
        _describe(span, event, findings)
        span.end(event.time_ns)
        if event.op_id:
            self._spans[event.rank, event.op_id] = span.get_span_context()
            if len(self._spans) > SPANS_REMEMBERED:
                self._spans.popitem(last=False)

    def _count(self, copies: Sequence[Copied]) -> None:
        """Add a batch to the metrics, summed by path first, because adding is what costs."""
        moved: Counter[_Path] = Counter()
        tiles: Counter[tuple[_Path, Outcome]] = Counter()
        for copy in copies:
            attributes = _path_attributes(copy)
            self._duration.record(copy.duration_us / 1e6, attributes)
            path = tuple(attributes.values())
            moved[path] += copy.bytes
            tiles[path, Outcome.VERIFIED] += copy.verified
            tiles[path, Outcome.WITNESSED] += copy.witnessed
            tiles[path, Outcome.MISMATCHED] += copy.mismatched
            tiles[path, Outcome.SKIPPED] += sum(copy.skipped.values())
        for path, size in moved.items():
            self._io.add(size, dict(zip(PATH, path, strict=True)))
        for (path, result), count in tiles.items():
            named = dict(zip(PATH, path, strict=True))
            self._tiles.add(count, {**named, "hicache.result": result.value})

    def _finding(self, event: Finding) -> None:
        attributes = {"hicache.finding": event.cls.value, "hicache.pool": whole(event.pool)}
        self._findings.add(event.count, {**attributes, "hicache.rank": event.rank})
        spot = self._spans.get((event.rank, event.op_id)) or _request_span(
            event.trace_id, event.span_id
        )
        where = Context() if spot is None else _inside(spot)
        facts = _finding_attributes(event)
        self._log(event, "hicache.finding", SeverityNumber.ERROR, facts, where)

    def _health(self, event: Health) -> None:
        """Count losses of all sinks, because the working sinks report for the others, and log."""
        for place, total in event.dropped.items():
            before = self._lost_before.get((event.rank, place), 0)
            self._lost_before[event.rank, place] = total
            sink, _, reason = place.partition("/")
            named: dict[str, str | int] = {
                "hicache.sink": whole(sink),
                "hicache.reason": whole(reason),
                "hicache.rank": event.rank,
            }
            self._lost.add(total - before if total >= before else total, named)
        self._log(event, "hicache.health", SeverityNumber.INFO, {}, Context())

    def _log(
        self,
        event: Event,
        name: str,
        severity: SeverityNumber,
        attributes: dict[str, Any],
        where: Context,
    ) -> None:
        emit_record(
            self._telemetry.logger,
            event_name=name,
            body=line(event),
            severity=severity,
            time_ns=event.time_ns,
            attributes={**attributes, "hicache.rank": event.rank},
            context=where,
        )


def _duration_histogram(meter: Meter) -> Histogram:
    """Create the histogram, with buckets for seconds if the API can take advice on them."""
    advice: dict[str, Any] = {}
    if takes_advice(meter):
        advice["explicit_bucket_boundaries_advisory"] = DURATION_BUCKETS_S
    return meter.create_histogram(DURATION, "s", "How long an operation took", **advice)


def _path_attributes(event: Copied) -> dict[str, str | int | bool]:
    ends = (event.op.value, event.src.value, event.dst.value)
    path = (whole(event.pool), *ends, whole(event.layout), event.token_granular, event.rank)
    return dict(zip(PATH, path, strict=True))


def _span_attributes(event: Copied) -> dict[str, str | int | bool]:
    return {
        **_path_attributes(event),
        "hicache.h": event.h,
        "hicache.d": event.d,
        "hicache.slot_page": event.slot_page,
        "hicache.unit": whole(event.unit),
        "hicache.pages": event.pages,
        "hicache.item_bytes": event.item_bytes,
        "hicache.dtype": whole(event.dtype),
        "hicache.layers": event.layers,
        "hicache.class": whole(event.cls),
        "hicache.io_backend": whole(event.io_backend),
        "hicache.bytes": event.bytes,
        "hicache.verified": event.verified,
        "hicache.witnessed": event.witnessed,
        "hicache.mismatched": event.mismatched,
        "hicache.skipped": sum(event.skipped.values()),
        "hicache.op_id": event.op_id,
    }


def _finding_attributes(event: Finding) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "hicache.finding": event.cls.value,
        "hicache.pool": event.pool,
        "hicache.op": event.op,
        "hicache.component": event.component,
        "hicache.layer": event.layer,
        "hicache.pages": list(event.pages),
        "hicache.page_count": event.page_count,
        "hicache.slots": event.slots,
        "hicache.expected": event.expected,
        "hicache.got": event.got,
        "hicache.advice": event.advice,
        "hicache.check": event.check,
        "hicache.count": event.count,
        "hicache.message": event.message,
    }
    return {
        name: whole(value) if isinstance(value, str) else value
        for name, value in facts.items()
        if value not in ("", [])
    }


def _describe(span: Span, event: Copied, findings: Sequence[Finding]) -> None:
    """Put findings and the operation's status on its span."""
    for finding in findings:
        span.add_event("hicache.finding", _finding_attributes(finding), finding.time_ns)
    if findings:
        span.set_status(StatusCode.ERROR, whole(f"{findings[0].cls.value}: {findings[0].message}"))
    elif event.status != "ok":
        span.set_status(StatusCode.ERROR, whole(event.status))


def _links(event: Copied) -> list[Link]:
    named = [(event.trace_id, event.span_id), *event.shared_with]
    return [Link(span) for ids in named if (span := _request_span(*ids)) is not None]


def _request_span(trace_id: str, span_id: str) -> SpanContext | None:
    """Return the span of a request that an event names; None if its ids are not valid."""
    try:
        ids = int(trace_id, 16), int(span_id, 16)
    except ValueError:
        return None
    found = SpanContext(*ids, is_remote=True, trace_flags=TraceFlags(1))
    return found if found.is_valid else None


def _inside(span: SpanContext) -> Context:
    return trace.set_span_in_context(trace.NonRecordingSpan(span), Context())
