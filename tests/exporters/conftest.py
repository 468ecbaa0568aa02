"""Services for the exporters' tests."""

import os
import shutil
from collections.abc import Iterator

import pytest
from tests.exporters.journal import JOURNALD, Journal
from tests.services import require


@pytest.fixture
def journal() -> Iterator[Journal]:
    """A journald of this test's own."""
    require(JOURNALD.exists() and shutil.which("journalctl"), "systemd-journald is not installed")
    require(os.geteuid() == 0, "a journald namespace needs root")
    running = Journal()
    yield running
    running.close()
