"""Fixtures for the exporters' tests."""

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.exporters.journal import JOURNALD, Journal
from tests.exporters.receiver import Receiver
from tests.services import require

from hicache_dbg.exporters.otel import OtelSink
from hicache_dbg.exporters.prometheus import PrometheusSink


@pytest.fixture
def journal() -> Iterator[Journal]:
    """A journald of this test's own."""
    require(JOURNALD.exists() and shutil.which("journalctl"), "systemd-journald is not installed")
    require(os.geteuid() == 0, "a journald namespace needs root")
    running = Journal()
    yield running
    running.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """An OTLP receiver of this test's own."""
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def environ(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment that points to the receiver; the exporters read the process's own."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}


@pytest.fixture
def registry() -> CollectorRegistry:
    """A registry of this test's own."""
    return CollectorRegistry()


@pytest.fixture
def port() -> int:
    """A port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number


@pytest.fixture
def serve(registry: CollectorRegistry, port: int) -> Iterator[Callable[..., PrometheusSink]]:
    """Return a function that makes sinks serving on the port; closed after the test."""
    sinks: list[PrometheusSink] = []

    def make(**options: Any) -> PrometheusSink:
        sinks.append(PrometheusSink(registry, port=port, address="127.0.0.1", **options))
        return sinks[-1]

    yield make
    for sink in sinks:
        sink.close()


@pytest.fixture
def otel_sink(environ: dict[str, str]) -> Iterator[OtelSink]:
    """A sink that sends to the receiver."""
    sink = OtelSink(environ=environ)
    yield sink
    sink.close()
