"""Where spans, metrics and logs go: the host's providers, or private ones from ``OTEL_*``.

A provider that the host has set is used and never replaced, signal by signal. Where it has set
none and the environment names an exporter, a private provider is built and registered nowhere.
Where there is neither, the API's own proxies are used: they begin to work when the host sets a
provider later.

Private spans and records are not batched by the SDK, whose processors drop silently when full:
the sink exports each batch itself, so that what arrived and what did not is counted exactly.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import _logs as logs_api
from opentelemetry import context, metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from hicache_dbg.exporters.otel_exporters import exporter_for
from hicache_dbg.exporters.otel_logs import CollectRecords, own_logger_provider

__all__ = ["Telemetry"]

SCOPE = "hicache_dbg"


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


class Telemetry:
    """A tracer, a meter and a logger, and the delivery of what they made.

    Raises:
        OtelConfigError: the environment asks for an exporter that is not to be had.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._deliveries: list[tuple[Callable[[], list[Any]], Callable[[list[Any]], Any]]] = []
        self._shutdowns: list[Callable[[], object]] = []
        resource = _resource(environ)
        self.tracer = self._tracer_provider(resource, environ).get_tracer(SCOPE)
        self.meter = self._meter_provider(resource, environ).get_meter(SCOPE)
        self.logger = self._logger_provider(resource, environ).get_logger(SCOPE)

    def deliver(self) -> tuple[int, str]:
        """Export what was made since the last call; how much of it was lost, and why.

        What a host's provider does with its part is the host's to know.
        """
        lost, why = 0, ""
        for take, export in self._deliveries:
            batch = take()
            if batch and (failure := _export(export, batch)):
                lost += len(batch)
                why = failure
        return lost, why

    def shutdown(self, limit_s: float) -> bool:
        """Flush and stop the private providers; False if ``limit_s`` seconds were not enough.

        Exporters may wait out a retry that is longer than any limit: it goes on without us, on a
        thread that does not keep the process alive.
        """
        stopper = threading.Thread(target=self._shut_down, name="hicache-dbg-otel", daemon=True)
        try:
            stopper.start()
        except RuntimeError:  # Python 3.12 starts no thread once the interpreter is going
            self._shut_down()
            return True
        stopper.join(limit_s)
        return not stopper.is_alive()

    def _shut_down(self) -> None:
        for stop in self._shutdowns:
            stop()

    def _tracer_provider(
        self, resource: Resource, environ: Mapping[str, str]
    ) -> trace.TracerProvider:
        host = trace.get_tracer_provider()
        exporter = exporter_for("TRACES", environ) if _is_proxy(host) else None
        if exporter is None:
            return host
        collect = _CollectSpans()
        own = TracerProvider(resource=resource, shutdown_on_exit=False)
        own.add_span_processor(collect)
        self._deliveries.append((collect.take, exporter.export))
        self._shutdowns += [own.shutdown, exporter.shutdown]
        return own

    def _meter_provider(
        self, resource: Resource, environ: Mapping[str, str]
    ) -> metrics.MeterProvider:
        host = metrics.get_meter_provider()
        exporter = exporter_for("METRICS", environ) if _is_proxy(host) else None
        if exporter is None:
            return host
        is_reader = isinstance(exporter, MetricReader)
        reader = exporter if is_reader else PeriodicExportingMetricReader(exporter)
        own = MeterProvider(metric_readers=[reader], resource=resource, shutdown_on_exit=False)
        self._shutdowns.append(own.shutdown)
        return own

    def _logger_provider(
        self, resource: Resource, environ: Mapping[str, str]
    ) -> logs_api.LoggerProvider:
        host = logs_api.get_logger_provider()
        exporter = exporter_for("LOGS", environ) if _is_proxy(host) else None
        if exporter is None:
            return host
        collect = CollectRecords()
        own = own_logger_provider(resource, collect)
        self._deliveries.append((collect.take, exporter.export))
        self._shutdowns += [own.shutdown, exporter.shutdown]
        return own


def _is_proxy(provider: object) -> bool:
    """Whether the API's stand-in is there, and no provider: its class is public for traces only."""
    return "Proxy" in type(provider).__name__


def _resource(environ: Mapping[str, str]) -> Resource:
    named = "OTEL_SERVICE_NAME" in environ or "service.name" in environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    return Resource.create({} if named else {"service.name": "hicache-dbg"})


def _export(export: Callable[[list[Any]], Any], batch: list[Any]) -> str:
    """Export ``batch``; why it failed, or nothing."""
    try:
        with _not_instrumented():
            result = export(batch)
    except Exception as error:  # noqa: BLE001 - an exporter raises what its transport raises
        return f"{type(error).__name__}: {error}"
    return "" if result.name == "SUCCESS" else "the exporter gave up"


@contextmanager
def _not_instrumented() -> Iterator[None]:
    """Keep the host's HTTP instrumentation from tracing our own export."""
    suppressed = context.set_value(context._SUPPRESS_INSTRUMENTATION_KEY, value=True)  # noqa: SLF001 - the key has no other name
    token = context.attach(suppressed)
    try:
        yield
    finally:
        context.detach(token)
