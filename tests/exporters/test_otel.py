"""OpenTelemetry, as seen by a real OTLP receiver."""

import http.client
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from opentelemetry import context
from tests.exporters.receiver import Receiver, attributes
from tests.exporters.samples import TIME_NS, copied, finding, health, started

from hicache_dbg.exporters.line import line
from hicache_dbg.exporters.otel import OtelSink
from hicache_dbg.exporters.otel_exporters import OtelConfigError, exporters_for
from hicache_dbg.tracer.events import Op
from hicache_dbg.tracer.sink import SinkError

TRACE, SPAN = "0123456789abcdef0123456789abcdef", "0123456789abcdef"


@pytest.fixture
def sink(environ: dict[str, str]) -> Iterator[OtelSink]:
    """A sink that sends to the receiver."""
    sink = OtelSink(environ=environ)
    yield sink
    sink.close()


def test_a_copy_becomes_one_span_with_its_own_times(sink: OtelSink, receiver: Receiver) -> None:
    """A span has the name, the duration and the attributes of its copy."""
    sink.emit([copied()])
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
    sink: OtelSink, receiver: Receiver
) -> None:
    """A copy too short for the clock still has a span that viewers show."""
    sink.emit([copied(duration_us=0.0)])
    (span,) = receiver.spans
    assert span.end_time_unix_nano - span.start_time_unix_nano == 1


def test_a_span_links_to_the_requests_span(sink: OtelSink, receiver: Receiver) -> None:
    """A copy that names a request's span links to it, in a trace of its own."""
    sink.emit([copied(trace_id=TRACE, span_id=SPAN), copied(trace_id="none", span_id="")])
    linked, alone = receiver.spans
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in linked.links] == [(TRACE, SPAN)]
    assert linked.trace_id.hex() != TRACE
    assert not alone.links


def test_ranks_with_equal_operation_numbers_have_spans_of_their_own(
    sink: OtelSink, receiver: Receiver
) -> None:
    """Two ranks, one request, one operation number: two spans, each with its own findings.

    Both link to the request's span, and so does what prefill sent and decode received.
    """
    linked = {"trace_id": TRACE, "span_id": SPAN}
    sink.emit(
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
    sink: OtelSink, receiver: Receiver
) -> None:
    """A finding is an event on the span of its operation, which fails, and a log record within it."""
    sink.emit([finding(), copied(), copied(op_id=902)])
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
    sink: OtelSink, receiver: Receiver
) -> None:
    """A finding of a later batch finds the span of its operation."""
    sink.emit([copied()])
    sink.emit([finding()])
    (span,), (record,) = receiver.spans, receiver.records
    assert (record.trace_id, record.span_id) == (span.trace_id, span.span_id)


def test_a_finding_about_no_operation_stands_in_the_requests_span(
    sink: OtelSink, receiver: Receiver
) -> None:
    """A finding without an operation is a record in the span that it names, or in none."""
    sink.emit([finding(op_id=0, trace_id=TRACE, span_id=SPAN), finding(op_id=0)])
    named, alone = receiver.records
    assert (named.trace_id.hex(), named.span_id.hex()) == (TRACE, SPAN)
    assert not any(alone.trace_id)


def test_a_start_is_a_record(sink: OtelSink, receiver: Receiver) -> None:
    """The start record arrives with the geometry of both ends in its text."""
    sink.emit([started()])
    (record,) = receiver.records
    assert record.body.string_value == line(started())
    assert record.severity_text == "INFO"


def test_metrics_have_the_units_and_values_of_the_copies(
    sink: OtelSink, receiver: Receiver
) -> None:
    """Duration in seconds, bytes, tiles by outcome and findings by class arrive on closing."""
    sink.emit([copied(), copied(), finding(count=5), health()])
    sink.close()
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


def test_losses_of_any_sink_are_told(sink: OtelSink, receiver: Receiver) -> None:
    """Losses of sinks arrive as a counter by sink and reason, and the summary as a record."""
    sink.emit([health(dropped={"journald/blocked": 6}), health(dropped={"journald/blocked": 9})])
    sink.close()
    (point,) = receiver.metrics["hicache.event.lost"].sum.data_points
    facts = attributes(point)
    assert (facts["hicache.sink"], facts["hicache.reason"]) == ("journald", "blocked")
    assert point.as_int == 9
    assert [record.severity_text for record in receiver.records] == ["INFO", "INFO"]
    assert "journald/blocked:9" in receiver.records[-1].body.string_value


def test_a_collector_that_refuses_is_a_counted_loss(sink: OtelSink, receiver: Receiver) -> None:
    """Spans and records that the collector refused are counted, and later ones arrive."""
    receiver.status = 400
    with pytest.raises(SinkError, match="3 of 3 events not delivered") as caught:
        sink.emit([copied(op_id=1), copied(op_id=2), finding(op_id=0)])
    assert (caught.value.reason, caught.value.lost) == ("export", 3)
    receiver.status = 200
    sink.emit([copied(op_id=3)])
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


def test_a_service_name_of_the_environment_is_kept(
    receiver: Receiver, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """OTEL_SERVICE_NAME names the service; we do not override it."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "prefill")
    sink = OtelSink(environ={**environ, "OTEL_SERVICE_NAME": "prefill"})
    sink.emit([copied()])
    sink.close()
    assert receiver.services == {"prefill"}


def test_a_signal_can_be_turned_off(receiver: Receiver, environ: dict[str, str]) -> None:
    """OTEL_LOGS_EXPORTER=none sends no records; spans are still sent."""
    sink = OtelSink(environ={**environ, "OTEL_LOGS_EXPORTER": "none"})
    sink.emit([copied(), finding()])
    sink.close()
    assert len(receiver.spans) == 1
    assert not receiver.records


def test_without_provider_and_endpoint_nothing_is_sent() -> None:
    """With nothing configured the sink waits for the host's provider: no loss, no thread of its own."""
    threads = set(threading.enumerate())
    sink = OtelSink(environ={})
    sink.emit([started(), copied(), finding(), health()])
    assert set(threading.enumerate()) <= threads
    sink.close()


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, r"no exporter 'zipkin' for traces is installed"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            r"protocol 'http/json' for traces is not supported: expected one of http/protobuf",
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": "carrier"},
            r"protocol 'carrier' for logs",
        ),
    ],
)
def test_an_exporter_that_is_not_to_be_had_is_one_clear_error(
    environ: dict[str, str], message: str
) -> None:
    """An unsupported exporter or protocol is named at construction."""
    with pytest.raises(OtelConfigError, match=message):
        OtelSink(environ=environ)


HOST = """
import sys
from opentelemetry import metrics, trace
from opentelemetry import _logs as logs
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from hicache_dbg.exporters.otel import OtelSink
from hicache_dbg.tracer.events import Event
import msgspec

def host():
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([reader], shutdown_on_exit=False))

spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
events = msgspec.json.decode(sys.argv[2], type=list[Event])
if sys.argv[1] == "before":
    host()
sink = OtelSink()
if sys.argv[1] == "after":
    host()
providers = trace.get_tracer_provider(), metrics.get_meter_provider(), logs.get_logger_provider()
sink.emit(events)
sink.close()
now = trace.get_tracer_provider(), metrics.get_meter_provider(), logs.get_logger_provider()
print(all(a is b for a, b in zip(providers, now)))
print(*(span.name for span in spans.get_finished_spans()))
data = reader.get_metrics_data()
names = {m.name for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
print(*sorted(name for name in names if name.startswith("hicache.")))
with trace.get_tracer("host").start_as_current_span("later"):
    pass
print(len(spans.get_finished_spans()))
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_hosts_providers_are_used_never_replaced_and_never_shut_down(
    receiver: Receiver, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Spans and metrics go to the host's providers, set before or after us; ours stay unbuilt.

    Only the logs, for which this host has no provider, go to the endpoint of the environment.
    """
    events = msgspec.json.encode([copied(), finding()]).decode()
    if when == "after":
        monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    done = subprocess.run(
        [sys.executable, "-c", HOST, when, events],
        capture_output=True,
        text=True,
        check=True,
    )
    same, names, metrics, later = done.stdout.splitlines()
    assert same == "True"
    assert names == "hicache.backup"
    assert metrics == (
        "hicache.copy.duration hicache.copy.io hicache.finding.count hicache.tile.count"
    )
    assert later == "2"
    assert not receiver.spans
    assert len(receiver.records) == (1 if when == "before" else 0)


FORKED = """
import os, sys
import msgspec
from hicache_dbg.exporters.otel import OtelSink
from hicache_dbg.tracer.events import Copied
event = msgspec.json.decode(sys.argv[1], type=Copied)
sink = OtelSink()
sink.emit([event])
child = os.fork()
for number in range(20):
    sink.emit([msgspec.structs.replace(event, op_id=number, rank=int(not child))])
sink.close()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_sends_on_connections_of_its_own(
    receiver: Receiver, environ: dict[str, str]
) -> None:
    """After a fork parent and child both deliver everything, and neither disturbs the other."""
    event = msgspec.json.encode(copied(op_id=99)).decode()
    subprocess.run([sys.executable, "-c", FORKED, event], check=True)
    sent = [attributes(span) for span in receiver.spans]
    for rank in (0, 1):
        mine = [facts["hicache.op_id"] for facts in sent if facts["hicache.rank"] == rank]
        assert mine == ([99] if rank == 0 else []) + list(range(20))
    ports: dict[int, set[int]] = {0: set(), 1: set()}
    for port, (path, message) in zip(receiver.clients, receiver.requests, strict=True):
        if path == "/v1/traces":
            (span,) = message.resource_spans[0].scope_spans[0].spans
            ports[attributes(span)["hicache.rank"]].add(port)
    assert not ports[0] & ports[1]


def test_the_hosts_http_instrumentation_is_told_to_look_away(
    sink: OtelSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instrumentation is suppressed during our exports, and only then."""
    suppressed: list[object] = []
    begin_request = http.client.HTTPConnection.putrequest

    def watched(self: http.client.HTTPConnection, *arguments: Any, **options: Any) -> None:
        suppressed.append(context.get_value(context._SUPPRESS_INSTRUMENTATION_KEY))
        begin_request(self, *arguments, **options)

    monkeypatch.setattr(http.client.HTTPConnection, "putrequest", watched)
    sink.emit([copied(), finding()])
    assert suppressed == [True, True]
    assert not context.get_value(context._SUPPRESS_INSTRUMENTATION_KEY)


def test_a_process_that_starts_no_more_threads_still_flushes(
    sink: OtelSink, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At exit some versions of Python refuse new threads; the metrics are sent all the same."""
    sink.emit([copied()])
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "hicache-dbg-otel":
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    sink.close()
    assert "hicache.tile.count" in receiver.metrics


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ("", ["OTLPSpanExporter"]),
        ("otlp", ["OTLPSpanExporter"]),
        ("console, otlp", ["ConsoleSpanExporter", "OTLPSpanExporter"]),
        ("otlp,otlp,", ["OTLPSpanExporter"]),
        ("none", []),
    ],
)
def test_every_exporter_that_the_environment_lists_is_built(
    environ: dict[str, str], chosen: str, names: list[str]
) -> None:
    """``OTEL_TRACES_EXPORTER`` is a list, as OpenTelemetry defines it."""
    built = exporters_for("TRACES", environ | {"OTEL_TRACES_EXPORTER": chosen})
    assert [type(exporter).__name__ for exporter in built] == names
    for exporter in built:
        exporter.shutdown()
