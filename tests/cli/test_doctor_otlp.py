"""The OTLP endpoint as ``hicache-dbg doctor`` sees it, whatever a variable holds."""

import socket

import pytest

from hicache_dbg.tracer.cli.doctor_checks import examine
from hicache_dbg.tracer.cli.doctor_parts import State


@pytest.mark.parametrize(
    "endpoint",
    [
        "localhost:4317",
        "127.0.0.1:4318",
        "http://",
        "http://host:99999",
        "http://[::1",
        "grpc://h:1",
    ],
)
@pytest.mark.parametrize(("sinks", "state"), [("otel", State.MISSING), ("stderr", State.ABSENT)])
def test_an_endpoint_that_is_no_url_is_told_and_not_asked(
    endpoint: str, sinks: str, state: State
) -> None:
    """A host without http:// is none of ours, though another exporter may take it."""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "HICACHE_DBG_SINKS": sinks}
    (part,) = (part for part in examine(environ) if part.name.startswith("otlp"))
    assert (part.name, part.state) == ("otlp endpoint", state)
    assert part.detail.startswith("the variable holds no URL for HTTP: ")
    assert part.advice == "name it as http://HOST:PORT"


@pytest.mark.parametrize("begin", ["", "http://", "http://user:secret@"])
@pytest.mark.parametrize("signal", ["", "TRACES_"])
def test_an_endpoint_for_grpc_needs_no_http(begin: str, signal: str) -> None:
    """The exporter of gRPC takes a host and a port; a password is not shown."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": begin + place,
            f"OTEL_EXPORTER_OTLP_{signal}PROTOCOL": "grpc",
            "HICACHE_DBG_SINKS": "otel",
        }
        (part,) = (part for part in examine(environ) if part.name == "otlp endpoint")
    shown = f"http://{place}" if begin else place
    assert (part.state, part.detail) == (State.OK, f"{shown} answers")
