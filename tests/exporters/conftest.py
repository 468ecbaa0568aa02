"""Fixtures for the exporters' tests."""

import os
import shutil
import socket
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry
from tests.exporters.journal import JOURNALD, Journal
from tests.exporters.receiver import Receiver
from tests.services import require


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
