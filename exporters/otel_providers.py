"""Where spans, metrics and logs go: the host's providers, or private ones from ``OTEL_*``.

A provider set by the host is used and never replaced, signal by signal. If the host has set none
and the environment names an exporter, a private provider is built and not registered. If there is
neither, the API's own proxies are used: they start working when the host sets a provider later.

Private spans and records bypass the SDK's batch processors, which drop silently when full: the sink
exports each batch itself, so that what arrived and what did not is counted exactly.
"""

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any, cast

from opentelemetry import _logs as logs_api
from opentelemetry import context, metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExportResult,
    MetricReader,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from hicache_dbg.exporters.closed_sets import DURATION_BUCKETS_S
from hicache_dbg.exporters.otel_exporters import exporters_for, turned_off
from hicache_dbg.exporters.otel_logs import CollectRecords, own_logger_provider

__all__ = ["DURATION", "OwnProcess", "Telemetry", "takes_advice"]

SCOPE = "hicache_dbg"
#: The histogram of durations.
DURATION = "hicache.copy.duration"

_log = logging.getLogger(__name__)

_Export = Callable[[list[Any]], Any]


class _CollectSpans(SpanProcessor):
    """Keeps ended spans until they are taken, so that their export can be counted."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        sampled = span.context is not None and span.context.trace_flags.sampled
        if sampled:
            self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        spans, self._spans = self._spans, []
        return spans


class OwnProcess:
    """A metric exporter that is silent in forked children.

    The SDK's reader keeps running there with the parent's counts and over the parent's connection.
    """

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter
        self._pid = os.getpid()

    def export(self, *arguments: Any, **options: Any) -> MetricExportResult:
        """Export in the process that counted; in a child, pretend success."""
        if os.getpid() != self._pid:
            return MetricExportResult.SUCCESS
        result: MetricExportResult = self._exporter.export(*arguments, **options)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exporter, name)


class Telemetry:
    """A tracer, a meter and a logger, and the delivery of what they produced.

    Raises:
        OtelConfigError: the environment asks for an exporter that is not available.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._deliveries: list[tuple[Callable[[], list[Any]], list[_Export]]] = []
        self._shutdowns: list[Callable[[], object]] = []
        #: The signals that go nowhere so far, although nobody turned them off.
        self.unsent: list[str] = []
        resource = _resource(environ)
        self.tracer = self._tracer_provider(resource, environ).get_tracer(SCOPE)
        self.meter = self._meter_provider(resource, environ).get_meter(SCOPE)
        self.logger = self._logger_provider(resource, environ).get_logger(SCOPE)

    def deliver(self) -> tuple[int, str]:
        """Export what was produced since the last call; return how much was lost, and why.

        What the host's own providers do with their part is not counted.
        """
        lost, why = 0, ""
        for take, exports in self._deliveries:
            if batch := take():
                failures = [told for export in exports if (told := _export(export, batch))]
                lost += len(batch) if failures else 0
                why = failures[0] if failures else why
        return lost, why

    def shutdown(self, limit_s: float) -> bool:
        """Flush and stop the private providers; return False after ``limit_s`` seconds.

        Exporters may be waiting out a retry that is longer than any limit. They continue on a
        daemon thread, which does not keep the process alive.
        """
        stopper = threading.Thread(target=self._shut_down, name="hicache-dbg-otel", daemon=True)
        try:
            stopper.start()
        except RuntimeError:  # Python 3.12 starts no threads during interpreter shutdown
            self._shut_down()
            return True
        stopper.join(limit_s)
        return not stopper.is_alive()

    def _shut_down(self) -> None:
        for stop in self._shutdowns:
            try:
                stop()
            except Exception as error:  # noqa: BLE001 - foreign code: the others must flush as well
                _log.warning("hicache-dbg: OpenTelemetry shutdown: %s", error)

    def _exporters(self, signal: str, environ: Mapping[str, str], host: object) -> list[Any]:
        """Create our own exporters for a signal; none if the host has a provider."""
        if not _is_proxy(host):
            return []
        exporters = exporters_for(signal, environ)
        if not exporters and not turned_off(signal, environ):
            self.unsent.append(signal.lower())
        return exporters

    def _tracer_provider(
        self, resource: Resource, environ: Mapping[str, str]
    ) -> trace.TracerProvider:
        host = trace.get_tracer_provider()
        exporters = self._exporters("TRACES", environ, host)
        if not exporters:
            return host
        collect = _CollectSpans()
        own = TracerProvider(resource=resource, shutdown_on_exit=False)
        own.add_span_processor(collect)
        self._deliveries.append((collect.take, [exporter.export for exporter in exporters]))
        self._shutdowns += [own.shutdown, *(exporter.shutdown for exporter in exporters)]
        return own

    def _meter_provider(
        self, resource: Resource, environ: Mapping[str, str]
    ) -> metrics.MeterProvider:
        host = metrics.get_meter_provider()
        exporters = self._exporters("METRICS", environ, host)
        if not exporters:
            return host
        readers = [_reader(exporter) for exporter in exporters]
        own = MeterProvider(readers, resource, shutdown_on_exit=False, views=_views())
        self._shutdowns.append(own.shutdown)
        return own

    def _logger_provider(
        self, resource: Resource, environ: Mapping[str, str]
    ) -> logs_api.LoggerProvider:
        host = logs_api.get_logger_provider()
        exporters = self._exporters("LOGS", environ, host)
        if not exporters:
            return host
        collect = CollectRecords()
        own = own_logger_provider(resource, collect)
        self._deliveries.append((collect.take, [exporter.export for exporter in exporters]))
        self._shutdowns += [own.shutdown, *(exporter.shutdown for exporter in exporters)]
        return own


def takes_advice(meter: metrics.Meter | type[metrics.Meter]) -> bool:
    """Return whether a histogram can be created with buckets of its own."""
    return "explicit_bucket_boundaries_advisory" in signature(meter.create_histogram).parameters


def _views() -> list[View]:
    """Return the buckets of durations for an older SDK: its own, meant for milliseconds, begin at 5.

    A newer one takes them as advice, which leaves the choice to the environment.
    """
    if takes_advice(metrics.Meter):
        return []
    buckets = ExplicitBucketHistogramAggregation(DURATION_BUCKETS_S)
    return [View(instrument_name=DURATION, aggregation=buckets)]


def _reader(exporter: Any) -> MetricReader:
    """Return a reader that hands metrics to ``exporter``; some exporters are readers themselves."""
    if isinstance(exporter, MetricReader):
        return exporter
    return PeriodicExportingMetricReader(cast("Any", OwnProcess(exporter)))


def _is_proxy(provider: object) -> bool:
    """Return whether ``provider`` is the API's placeholder; its class is public for traces only."""
    return "Proxy" in type(provider).__name__


def _resource(environ: Mapping[str, str]) -> Resource:
    named = "OTEL_SERVICE_NAME" in environ or "service.name" in environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    resource = Resource.create({} if named else {"service.name": "hicache-dbg"})
    # Older SDKs give none, and then the counters of two processes are one series that jumps.
    identity = {"service.instance.id": str(uuid.uuid4()), **resource.attributes}
    return resource.merge(Resource(identity))


def _export(export: _Export, batch: list[Any]) -> str:
    """Export ``batch``; return why it failed, or an empty string."""
    try:
        with _not_instrumented():
            result = export(batch)
    except Exception as error:  # noqa: BLE001 - an exporter raises what its transport raises
        return f"{type(error).__name__}: {error}"
    return "" if result.name == "SUCCESS" else "the exporter gave up"


@contextmanager
def _not_instrumented() -> Iterator[None]:
    """Keep the host's HTTP instrumentation from tracing our own exports."""
    suppressed = context.set_value(context._SUPPRESS_INSTRUMENTATION_KEY, value=True)  # noqa: SLF001 - the key has no other name
    token = context.attach(suppressed)
    try:
        yield
    finally:
        context.detach(token)
