"""OpenTelemetry in a host: its environment, providers, forks, instrumentation and exit."""

import http.client
import shlex
import shutil
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry import context
from opentelemetry.sdk.resources import Resource
from tests.exporters.receiver import Receiver, attributes
from tests.exporters.samples import copied, finding, health, started
from tests.services import require

from hicache_dbg.exporters.otel import OtelSink
from hicache_dbg.exporters.otel_exporters import OtelConfigError, exporters_for
from hicache_dbg.tracer.sink import SinkError


def test_a_service_name_of_the_environment_is_kept(
    receiver: Receiver, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """OTEL_SERVICE_NAME names the service; we do not override it."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "prefill")
    sink = OtelSink(environ={**environ, "OTEL_SERVICE_NAME": "prefill"})
    sink.emit([copied()])
    sink.close()
    assert receiver.services == {"prefill"}


def test_each_process_is_an_instance_of_its_own(
    environ: dict[str, str], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with an SDK that names none: the counters of two processes are two series."""
    monkeypatch.setattr(Resource, "create", staticmethod(Resource))
    for _ in range(2):  # as in two processes
        sink = OtelSink(environ=environ)
        sink.emit([copied()])
        sink.close()
    instances = {
        attributes(part.resource)["service.instance.id"]
        for path, message in receiver.requests
        if path == "/v1/traces"
        for part in message.resource_spans
    }
    assert len(instances) == 2


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
    ("environ", "unsent"),
    [
        ({}, "traces and metrics and logs"),
        ({"OTEL_LOGS_EXPORTER": "none"}, "traces and metrics"),
        ({"OTEL_LOGS_EXPORTER": "none", "OTEL_TRACES_EXPORTER": "none"}, "metrics"),
    ],
)
def test_what_has_nowhere_to_go_is_said_once(
    environ: dict[str, str], unsent: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Who named the sink and forgot the endpoint would see nothing at all, and no loss either."""
    sink = OtelSink(environ=environ)
    sink.emit([started(), copied(), finding(), health()])
    sink.close()
    (said,) = caplog.messages
    assert f"sink otel has nowhere to send {unsent}: set OTEL_EXPORTER_OTLP_ENDPOINT" in said


@pytest.mark.parametrize("off", [(), ("LOGS",)])
def test_nothing_is_said_of_what_is_sent_or_was_turned_off(
    environ: dict[str, str], off: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither of a signal with an endpoint, nor of one that the host asked not to send."""
    OtelSink(environ=environ | {f"OTEL_{signal}_EXPORTER": "none" for signal in off}).close()
    assert not caplog.messages


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
    otel_sink: OtelSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instrumentation is suppressed during our exports, and only then."""
    suppressed: list[object] = []
    begin_request = http.client.HTTPConnection.putrequest

    def watched(self: http.client.HTTPConnection, *arguments: Any, **options: Any) -> None:
        suppressed.append(context.get_value(context._SUPPRESS_INSTRUMENTATION_KEY))
        begin_request(self, *arguments, **options)

    monkeypatch.setattr(http.client.HTTPConnection, "putrequest", watched)
    otel_sink.emit([copied(), finding()])
    assert suppressed == [True, True]
    assert not context.get_value(context._SUPPRESS_INSTRUMENTATION_KEY)


def test_an_exporter_that_fails_to_stop_costs_no_other_its_last_batch(
    otel_sink: OtelSink, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """What stops after it is still flushed, and the failure is one line."""

    def fail() -> None:
        raise RuntimeError("already gone")

    otel_sink._telemetry._shutdowns.insert(0, fail)
    otel_sink.emit([copied()])
    otel_sink.close()
    assert "hicache.tile.count" in receiver.metrics
    told = [record.getMessage() for record in caplog.records if "already gone" in record.message]
    assert told == ["hicache-dbg: OpenTelemetry shutdown: already gone"]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for the loopback that nobody but this test trusts, and its key beside it."""
    openssl = shutil.which("openssl")
    require(openssl, "openssl is not installed")
    path = tmp_path / "certificate.pem"
    command = (
        f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 "
        f"-keyout {tmp_path / 'key.pem'} -out {path} -subj /CN=localhost "
        "-addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run(shlex.split(command), check=True, capture_output=True)
    return path


@pytest.mark.service
def test_a_collector_behind_tls_is_trusted_by_the_certificate_of_the_environment(
    receiver: Receiver, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ``OTEL_EXPORTER_OTLP_CERTIFICATE`` the batch is a counted loss, and with it it arrives."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    receiver._server.socket = context.wrap_socket(receiver._server.socket, server_side=True)
    secure = receiver.endpoint.replace("http:", "https:")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", secure)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # newer exporters would prefer them
        monkeypatch.delenv(name, raising=False)
    distrusting = OtelSink()
    with pytest.raises(SinkError) as caught:
        distrusting.emit([copied()])
    assert (caught.value.reason, caught.value.lost) == ("export", 1)
    distrusting.close()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificate))
    trusting = OtelSink()
    trusting.emit([copied(op_id=7)])
    trusting.close()
    assert [attributes(span)["hicache.op_id"] for span in receiver.spans] == [7]


def test_a_process_that_starts_no_more_threads_still_flushes(
    otel_sink: OtelSink, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At exit some versions of Python refuse new threads; the metrics are sent all the same."""
    otel_sink.emit([copied()])
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "hicache-dbg-otel":
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    otel_sink.close()
    assert "hicache.tile.count" in receiver.metrics
