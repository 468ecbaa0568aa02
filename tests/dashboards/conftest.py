"""Fixtures for the tests of the dashboards."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.dashboards.stack import exporting, scraping
from tests.services import require

from hicache_dbg.tracer.dashboards.files import export, shipped


@pytest.fixture(scope="package")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Prometheus that scrapes a process while it copies."""
    require(shutil.which("prometheus"), "prometheus is not installed")
    folder = tmp_path_factory.mktemp("prometheus")
    with exporting() as port, scraping(port, folder) as url:
        yield url


@pytest.fixture(scope="package")
def dashboards() -> Path:
    """The folder of the shipped dashboards."""
    return shipped()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the shipped dashboards, to plant mistakes in."""
    export(tmp_path / "copy")
    return tmp_path / "copy"
