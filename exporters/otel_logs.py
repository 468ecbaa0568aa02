"""The one place that knows OpenTelemetry's logs API, which is not stable yet.

Known to work with SDK 1.27 (an SDK record type with trace ids, processors with ``emit``), 1.40 and
1.45 (an API record type with a context and an event name, ``on_emit``). The installed SDK is
inspected for what it takes; its version is not consulted.
"""

from inspect import signature
from typing import Any

from opentelemetry import _logs as api
from opentelemetry.context import Context
from opentelemetry.sdk import _logs as sdk
from opentelemetry.trace import get_current_span

__all__ = ["CollectRecords", "emit_record", "own_logger_provider"]

_RECORD: Any = getattr(sdk, "LogRecord", None) or api.LogRecord
_TAKEN = frozenset(signature(_RECORD.__init__).parameters)


def emit_record(
    logger: api.Logger,
    *,
    event_name: str,
    body: str,
    severity: api.SeverityNumber,
    time_ns: int,
    attributes: dict[str, Any],
    context: Context,
) -> None:
    """Emit one log record in the span of ``context``.

    If the SDK has no event names, the name becomes the attribute ``event.name``.
    """
    span = get_current_span(context).get_span_context()
    offered = {
        "timestamp": time_ns,
        "observed_timestamp": time_ns,
        "severity_number": severity,
        "severity_text": severity.name,
        "body": body,
        "attributes": attributes,
    }
    if "event_name" in _TAKEN:
        offered["event_name"] = event_name
    else:
        offered["attributes"] = {**attributes, "event.name": event_name}
    if "context" in _TAKEN:
        offered["context"] = context
    else:
        offered["trace_id"] = span.trace_id
        offered["span_id"] = span.span_id
        offered["trace_flags"] = span.trace_flags
    if "resource" in _TAKEN:
        # A proxy for the host's provider hides the real logger, which knows the resource.
        real = getattr(logger, "_logger", logger)
        offered["resource"] = getattr(real, "resource", None)
    logger.emit(_RECORD(**offered))


class CollectRecords(sdk.LogRecordProcessor):
    """Keeps emitted records until they are taken, so that their export can be counted."""

    def __init__(self) -> None:
        self._records: list[Any] = []

    def on_emit(self, log_record: Any) -> None:
        """Keep a record."""
        self._records.append(log_record)

    #: The older name of the same hook.
    emit = on_emit

    def take(self) -> list[Any]:
        """Return the records emitted since the last call."""
        records, self._records = self._records, []
        return records

    def shutdown(self) -> None:
        """Do nothing: there is nothing to release."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:  # noqa: ARG002 - the SDK calls it so
        """Return True: the sink exports every batch itself."""
        return True


def own_logger_provider(resource: Any, collect: CollectRecords) -> sdk.LoggerProvider:
    """Return an unregistered provider that feeds ``collect``."""
    provider = sdk.LoggerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_log_record_processor(collect)
    return provider
