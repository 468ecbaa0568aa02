"""A real OTLP/HTTP receiver on the loopback that decodes and keeps what arrives."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = ["Receiver", "attributes"]

_REQUESTS: dict[str, Any] = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}


class Receiver:
    """Listens on its own port from construction to :meth:`close`.

    ``clients`` has the sender's port of each request: one port is one connection. ``status`` is the
    status of its answers: a collector in trouble answers 400 or 503.
    """

    def __init__(self) -> None:
        self.status = 200
        self.requests: list[tuple[str, Any]] = []
        self.clients: list[int] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # connections are kept, as by a real collector

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                if receiver.status == 200:
                    receiver.clients.append(self.client_address[1])
                    message = _REQUESTS[self.path].FromString(data)
                    receiver.requests.append((self.path, message))
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *_arguments: Any) -> None:  # noqa: A002 - its name
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def spans(self) -> list[Any]:
        """Every span, in order of arrival."""
        return [
            span
            for path, message in self.requests
            if path == "/v1/traces"
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def records(self) -> list[Any]:
        """Every log record, in order of arrival."""
        return [
            record
            for path, message in self.requests
            if path == "/v1/logs"
            for resource in message.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]

    @property
    def metrics(self) -> dict[str, Any]:
        """Latest state of each (cumulative) metric by name."""
        return {
            metric.name: metric
            for path, message in self.requests
            if path == "/v1/metrics"
            for resource in message.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    @property
    def services(self) -> set[str]:
        """Service names under which anything arrived."""
        found = set()
        for path, message in self.requests:
            kind = path.removeprefix("/v1/").replace("traces", "spans")
            for part in getattr(message, f"resource_{kind}"):
                found.add(attributes(part.resource)["service.name"])
        return found


def attributes(item: Any) -> dict[str, Any]:
    """Return the attributes of a span, record, data point or resource as plain values."""
    return {pair.key: _plain(pair.value) for pair in item.attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    return getattr(value, kind)
