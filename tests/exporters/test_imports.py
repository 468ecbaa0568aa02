"""The cost of importing an exporter in a serving process."""

import subprocess
import sys

import pytest

LIBRARIES = ("structlog", "prometheus_client", "opentelemetry", "torch", "pynvml", "requests")

SCRIPT = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(*(name for name in sys.argv[2:] if name in sys.modules))
"""


@pytest.mark.parametrize(
    ("module", "libraries"),
    [
        ("hicache_dbg.exporters", ""),
        ("hicache_dbg.exporters.line", ""),
        ("hicache_dbg.exporters.recording", ""),
        ("hicache_dbg.exporters.journald", "structlog"),
        ("hicache_dbg.exporters.stderr", "structlog"),
        ("hicache_dbg.exporters.prometheus", "prometheus_client"),
        ("hicache_dbg.exporters.otel", "opentelemetry"),
    ],
)
def test_a_library_is_imported_by_its_own_exporter_only(module: str, libraries: str) -> None:
    """Importing an exporter loads its own library and no other."""
    command = [sys.executable, "-c", SCRIPT, module, *LIBRARIES]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == libraries
