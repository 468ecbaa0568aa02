"""Find the OpenTelemetry exporters that the environment asks for, signal by signal.

The variables are OpenTelemetry's own: ``OTEL_TRACES_EXPORTER`` and its two siblings, and OTLP's
endpoint and protocol. The exporters read the rest (headers, timeouts, certificates) themselves.
They are found by their registered names, so each is imported only if it is asked for.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

__all__ = ["OtelConfigError", "exporters_for", "turned_off"]

_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_PACKAGES = {
    "otlp_proto_http": "hicache-dbg[otlp]",
    "otlp_proto_grpc": "opentelemetry-exporter-otlp-proto-grpc",
}


class OtelConfigError(Exception):
    """The environment asks for an exporter that is not available; the message says what to do."""


def exporters_for(signal: str, environ: Mapping[str, str]) -> list[Any]:
    """Create the exporters that ``OTEL_<signal>_EXPORTER`` lists (TRACES, METRICS or LOGS).

    OTLP is the default, but only if an endpoint is configured: sending to a collector that nobody
    named would cost a timeout per batch.

    Raises:
        OtelConfigError: an exporter is unknown, not installed, or cannot be created.
    """
    chosen = _chosen(signal, environ)
    if turned_off(signal, environ) or (chosen == [""] and not _endpoint(signal, environ)):
        return []
    return [_exporter(name, signal, environ) for name in chosen if name or len(chosen) == 1]


def turned_off(signal: str, environ: Mapping[str, str]) -> bool:
    """Return whether the environment says that a signal is not to be sent."""
    return "none" in _chosen(signal, environ)


def _chosen(signal: str, environ: Mapping[str, str]) -> list[str]:
    listed = environ.get(f"OTEL_{signal}_EXPORTER", "").split(",")
    return list(dict.fromkeys(name.strip() for name in listed))


def _exporter(chosen: str, signal: str, environ: Mapping[str, str]) -> Any:
    name = _otlp(signal, environ) if chosen in ("", "otlp") else chosen
    group = f"opentelemetry_{signal.lower()}_exporter"
    found = next(iter(entry_points(group=group, name=name)), None)
    if found is None:
        raise OtelConfigError(
            f"no exporter {name!r} for {signal.lower()} is installed: "
            f"pip install '{_PACKAGES.get(name, name)}', or set OTEL_{signal}_EXPORTER=none"
        )
    try:
        return found.load()()
    except Exception as error:
        raise OtelConfigError(
            f"exporter {name!r} for {signal.lower()}: {type(error).__name__}: {error}"
        ) from error


def _endpoint(signal: str, environ: Mapping[str, str]) -> str:
    own = environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "")
    return own or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")


def _otlp(signal: str, environ: Mapping[str, str]) -> str:
    general = environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    protocol = environ.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", general)
    try:
        return _PROTOCOLS[protocol]
    except KeyError:
        raise OtelConfigError(
            f"OTLP protocol {protocol!r} for {signal.lower()} is not supported: expected one of "
            + ", ".join(_PROTOCOLS)
        ) from None
