"""OpenTelemetry, as seen by a real OTLP receiver: spans, records, metrics, losses."""

import time

import pytest
from tests.exporters.receiver import Receiver, attributes
from tests.exporters.samples import TIME_NS, copied, finding, health, started

from hicache_dbg.exporters.closed_sets import DURATION_BUCKETS_S
from hicache_dbg.exporters.line import line
from hicache_dbg.exporters.otel import OtelSink
from hicache_dbg.tracer.events import Op
from hicache_dbg.tracer.sink import SinkError

TRACE, SPAN = "0123456789abcdef0123456789abcdef", "0123456789abcdef"


def test_a_copy_becomes_one_span_with_its_own_times(
    otel_sink: OtelSink, receiver: Receiver
) -> None:
    """A span has the name, the duration and the attributes of its copy."""
    otel_sink.emit([copied()])
    (span,) = receiver.spans
    assert span.name == "hicache.backup"
    assert span.start_time_unix_nano == TIME_NS - 250_500
    assert span.end_time_unix_nano == TIME_NS
    assert span.parent_span_id == b""
    facts = attributes(span)
    assert facts["hicache.pool"] == "deepseek_v4_c128"
    assert facts["hicache.token_granular"] is False
    assert (facts["hicache.h"], facts["hicache.bytes"]) == (512, 131072)
    assert (facts["hicache.witnessed"], facts["hicache.skipped"]) == (7, 1)
    assert receiver.services == {"hicache-dbg"}


def test_a_span_has_a_width_even_if_the_copy_took_no_time(
    otel_sink: OtelSink, receiver: Receiver
) -> None:
    """A copy too short for the clock still has a span that viewers show."""
    otel_sink.emit([copied(duration_us=0.0)])
    (span,) = receiver.spans
    assert span.end_time_unix_nano - span.start_time_unix_nano == 1


def test_a_span_links_to_the_requests_span(otel_sink: OtelSink, receiver: Receiver) -> None:
    """A copy that names a request's span links to it, in a trace of its own."""
    otel_sink.emit([copied(trace_id=TRACE, span_id=SPAN), copied(trace_id="none", span_id="")])
    linked, alone = receiver.spans
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in linked.links] == [(TRACE, SPAN)]
    assert linked.trace_id.hex() != TRACE
    assert not alone.links


def test_ranks_with_equal_operation_numbers_have_spans_of_their_own(
    otel_sink: OtelSink, receiver: Receiver
) -> None:
    """Two ranks, one request, one operation number: two spans, each with its own findings.

    Both link to the request's span, and so does what prefill sent and decode received.
    """
    linked = {"trace_id": TRACE, "span_id": SPAN}
    otel_sink.emit(
        [
            copied(rank=0, time_ns=TIME_NS, **linked),
            copied(rank=1, time_ns=TIME_NS + 5_000, **linked),
            finding(rank=1),
            copied(op=Op.SEND, op_id=7, **linked),
            copied(op=Op.RECV, op_id=7, rank=2, **linked),
        ]
    )
    spans = {(attributes(span)["hicache.rank"], span.name): span for span in receiver.spans}
    assert len(spans) == 4
    ends = [spans[rank, "hicache.backup"].end_time_unix_nano for rank in (0, 1)]
    assert ends == [TIME_NS, TIME_NS + 5_000]
    assert [len(spans[rank, "hicache.backup"].events) for rank in (0, 1)] == [0, 1]
    assert {link.trace_id.hex() for span in spans.values() for link in span.links} == {TRACE}
    assert all(span.links for span in spans.values())


def test_a_finding_is_an_event_on_its_operations_span_and_a_record_in_it(
    otel_sink: OtelSink, receiver: Receiver
) -> None:
    """A finding is an event on the span of its operation, which fails, and a log record within it."""
    otel_sink.emit([finding(), copied(), copied(op_id=902)])
    span, other = receiver.spans
    (event,) = span.events
    assert (event.name, event.time_unix_nano) == ("hicache.finding", TIME_NS + 1000)
    assert attributes(event)["hicache.expected"] == "256"
    assert attributes(event)["hicache.pages"] == [0, 1, 2, 7]
    assert (span.status.code, other.status.code) == (2, 0)
    assert span.status.message.startswith("row_width: the host has 132 bytes")
    (record,) = receiver.records
    assert (record.trace_id, record.span_id) == (span.trace_id, span.span_id)
    assert record.body.string_value == line(finding())
    assert record.severity_text == "ERROR"
    assert attributes(record)["hicache.got"] == "132"
    name = getattr(record, "event_name", "") or attributes(record)["event.name"]
    assert name == "hicache.finding"


def test_a_finding_that_comes_later_is_still_a_record_in_the_span(
    otel_sink: OtelSink, receiver: Receiver
) -> None:
    """A finding of a later batch finds the span of its operation."""
    otel_sink.emit([copied()])
    otel_sink.emit([finding()])
    (span,), (record,) = receiver.spans, receiver.records
    assert (record.trace_id, record.span_id) == (span.trace_id, span.span_id)


def test_a_finding_about_no_operation_stands_in_the_requests_span(
    otel_sink: OtelSink, receiver: Receiver
) -> None:
    """A finding without an operation is a record in the span that it names, or in none."""
    otel_sink.emit([finding(op_id=0, trace_id=TRACE, span_id=SPAN), finding(op_id=0)])
    named, alone = receiver.records
    assert (named.trace_id.hex(), named.span_id.hex()) == (TRACE, SPAN)
    assert not any(alone.trace_id)


def test_a_start_is_a_record(otel_sink: OtelSink, receiver: Receiver) -> None:
    """The start record arrives with the geometry of both ends in its text."""
    otel_sink.emit([started()])
    (record,) = receiver.records
    assert record.body.string_value == line(started())
    assert record.severity_text == "INFO"


def test_metrics_have_the_units_and_values_of_the_copies(
    otel_sink: OtelSink, receiver: Receiver
) -> None:
    """Duration in seconds, bytes, tiles by outcome and findings by class arrive on closing."""
    otel_sink.emit([copied(), copied(), finding(count=5), health()])
    otel_sink.close()
    found = receiver.metrics
    units = {name: metric.unit for name, metric in found.items()}
    assert units == {
        "hicache.copy.duration": "s",
        "hicache.copy.io": "By",
        "hicache.tile.count": "{tile}",
        "hicache.finding.count": "{finding}",
        "hicache.event.lost": "{event}",
    }
    (duration,) = found["hicache.copy.duration"].histogram.data_points
    assert (duration.count, duration.sum) == (2, pytest.approx(501e-6))
    assert attributes(duration)["hicache.op"] == "backup"
    assert tuple(duration.explicit_bounds) == DURATION_BUCKETS_S
    (moved,) = found["hicache.copy.io"].sum.data_points
    assert moved.as_int == 2 * 131072
    tiles = {
        attributes(point)["hicache.result"]: point.as_int
        for point in found["hicache.tile.count"].sum.data_points
    }
    assert tiles == {"verified": 0, "witnessed": 14, "mismatched": 0, "skipped": 2}
    (findings,) = found["hicache.finding.count"].sum.data_points
    assert findings.as_int == 5
    assert attributes(findings)["hicache.finding"] == "row_width"


def test_losses_of_any_sink_are_told(otel_sink: OtelSink, receiver: Receiver) -> None:
    """Losses of sinks arrive as a counter by sink and reason, and the summary as a record."""
    otel_sink.emit(
        [health(dropped={"journald/blocked": 6}), health(dropped={"journald/blocked": 9})]
    )
    otel_sink.close()
    (point,) = receiver.metrics["hicache.event.lost"].sum.data_points
    facts = attributes(point)
    assert (facts["hicache.sink"], facts["hicache.reason"]) == ("journald", "blocked")
    assert point.as_int == 9
    assert [record.severity_text for record in receiver.records] == ["INFO", "INFO"]
    assert "journald/blocked:9" in receiver.records[-1].body.string_value


def test_a_collector_that_refuses_is_a_counted_loss(
    otel_sink: OtelSink, receiver: Receiver
) -> None:
    """Spans and records that the collector refused are counted, and later ones arrive."""
    receiver.status = 400
    with pytest.raises(SinkError, match="3 of 3 events not delivered") as caught:
        otel_sink.emit([copied(op_id=1), copied(op_id=2), finding(op_id=0)])
    assert (caught.value.reason, caught.value.lost) == ("export", 3)
    receiver.status = 200
    otel_sink.emit([copied(op_id=3)])
    assert [attributes(span)["hicache.op_id"] for span in receiver.spans] == [3]


def test_a_dead_collector_neither_hangs_nor_loses_silently(
    receiver: Receiver, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a listener a batch is lost and counted, and closing keeps its time limit."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    sink = OtelSink(environ=environ, close_limit_s=0.2)
    receiver.close()
    with pytest.raises(SinkError) as caught:
        sink.emit([copied(), copied()])
    assert caught.value.lost == 2
    begin = time.monotonic()
    sink.close()
    assert time.monotonic() - begin < 1.0
