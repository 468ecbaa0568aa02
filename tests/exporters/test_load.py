"""Every sink at once against its real service, at a given rate: each event is accounted for.

The sender, the OTLP receiver, journald and Prometheus are separate processes, as in production.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from tests.dashboards.stack import free_port, scraping
from tests.exporters.collector import Collector, collecting
from tests.exporters.journal import Journal
from tests.exporters.sender import Report
from tests.services import require

from hicache_dbg.exporters.recording_format import read, recordings_in
from hicache_dbg.tracer.dashboards.live import Prometheus
from hicache_dbg.tracer.events import Copied

pytestmark = pytest.mark.service

SINKS = ("journald", "otel", "prometheus", "recording", "stderr")
ROOT = Path(__file__).parents[2]
SEEN = "hicache_dbg_copies_total > 0"
#: The last scrape is a second old at most, on a machine that is not busy.
WAIT_S = 60.0


@contextmanager
def sending(rate: int, seconds: float, environ: dict[str, str], errors: Path) -> Iterator[Report]:
    """Run a sender and yield its report; it serves its metrics until the end."""
    command = [sys.executable, "-m", "tests.exporters.sender", str(rate), str(seconds)]
    with (
        errors.open("w") as said,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        port = int(environ["HICACHE_DBG_PROMETHEUS_PORT"])
        with scraping(port, errors.parent, until=SEEN) as url:
            report = msgspec.json.decode(process.stdout.readline(), type=Report)
            wait_for(url, SEEN, report.copies)
            yield report
            process.communicate()


def wait_for(url: str, expression: str, value: float) -> None:
    """Wait until Prometheus has scraped ``value``, which is the last one."""
    found, deadline = None, time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = [series.last for series in Prometheus(url).query(expression)]
        if found == [value]:
            return
        time.sleep(0.2)
    raise AssertionError(f"{expression} is {found} in Prometheus, expected {value}")


def arrived(journal: Journal, folder: Path, collector: Collector) -> dict[str, list[int]]:
    """Return the numbers of the copies that arrived, by sink, as each service reports them."""
    lines = journal.lines("-o", "cat", "HICACHE_EVENT=copied")
    parts = recordings_in(folder)  # a run of this length is cut in two
    return {
        "journald": [int(text.partition(" h=")[2].split()[0]) for text in lines],
        "recording": [
            event.h for part in parts for event in read(part) if isinstance(event, Copied)
        ],
        "otel": collector.operations(),
    }


@pytest.mark.timeout(280)
@pytest.mark.parametrize(("rate", "seconds", "shedding"), [(2_000, 60, ()), (20_000, 4, ("otel",))])
def test_what_is_sent_at_a_rate_is_delivered_or_counted(
    *,
    journal: Journal,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    rate: int,
    seconds: float,
    shedding: tuple[str, ...],
) -> None:
    """At 2,000/s no sink loses any; at 20,000/s only OpenTelemetry does: sent = delivered + lost.

    Each copy that a sink reports as delivered is found in its service, once, in order.
    """
    require(shutil.which("prometheus"), "prometheus is not installed")
    recordings, errors = tmp_path / "recordings", tmp_path / "errors"
    with collecting() as collector:
        environ = {
            "HICACHE_DBG_SINKS": ",".join(SINKS),
            "HICACHE_DBG_JOURNALD_SOCKET": str(journal.socket),
            "HICACHE_DBG_DIR": str(recordings),
            "HICACHE_DBG_PROMETHEUS_PORT": str(free_port()),
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        }
        with sending(rate, seconds, environ, errors) as report:
            pass
        found = arrived(journal, recordings, collector)
    with capsys.disabled():
        print("\n" + table(report))  # noqa: T201 - the shares are what CI is to show
    assert report.copies == rate * seconds
    for name, fate in report.sinks.items():
        lost = sum(fate.lost.values())
        assert fate.delivered + lost == report.events, name
        assert not lost or name in shedding, name
        assert not fate.failures, name
    assert len(errors.read_text().splitlines()) >= 1
    for name, numbers in found.items():
        lost = sum(report.sinks[name].lost.values())
        assert len(numbers) == report.copies - lost, name
        assert all(one < other for one, other in pairwise(numbers)), name


def table(report: Report) -> str:
    """Return sent, delivered and lost by sink."""
    pace = f"{report.copies} copies in {report.seconds:.1f} s"
    lines = [f"{pace}, the longest publish took {report.longest_publish_s * 1e3:.2f} ms"]
    for name, fate in report.sinks.items():
        share = fate.delivered / report.events
        lines.append(
            f"  {name:10} sent {report.events} = delivered {fate.delivered} ({share:.2%}, "
            f"{fate.delivered_in_time} in time) + lost {json.dumps(fate.lost)}"
        )
    return "\n".join(lines)
