"""A real exporter process that copies pages, and a real Prometheus that scrapes it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hicache_dbg.tracer.dashboards.live import Prometheus, PrometheusError

__all__ = ["exporting", "free_port", "scraping"]

WAIT_S = 40.0
EXPORTER = Path(__file__).with_name("exporter.py")

#: Two scrapes apart, the counters were seen to grow.
GROWN = "rate(hicache_dbg_copies_total[4s]) > 0"

CONFIGURATION = """
global: {scrape_interval: 1s, evaluation_interval: 1s}
scrape_configs:
  - job_name: hicache-dbg
    static_configs: [{targets: ["127.0.0.1:%d"]}]
"""


def free_port() -> int:
    """Return a port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number


@contextmanager
def exporting() -> Iterator[int]:
    """Run the exporter and yield its port once its copies have begun to come back."""
    port = free_port()
    gate = {
        "HICACHE_DBG": "1",
        "HICACHE_DBG_SINKS": "prometheus",
        "HICACHE_DBG_PROMETHEUS_PORT": str(port),
    }
    with subprocess.Popen(
        [sys.executable, EXPORTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | gate,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield port
        process.stdin.close()
        assert process.wait(WAIT_S) == 0


@contextmanager
def scraping(port: int, folder: Path, *, until: str = GROWN) -> Iterator[str]:
    """Yield the URL of a Prometheus once an expression has a series."""
    address = f"127.0.0.1:{free_port()}"
    (folder / "prometheus.yml").write_text(CONFIGURATION % port)
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--enable-feature=exemplar-storage",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        url = f"http://{address}"
        try:
            _wait_for(url, until)
            yield url
        finally:
            process.terminate()
            process.wait(WAIT_S)


def _wait_for(url: str, expression: str) -> None:
    """Wait until ``expression`` has a series."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            if Prometheus(url).query(expression):
                return
        except PrometheusError:
            pass  # it is not listening yet
        time.sleep(0.1)
    raise TimeoutError(f"{expression} had no series within {WAIT_S} s at {url}")
