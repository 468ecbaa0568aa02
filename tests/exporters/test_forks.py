"""Forked children: what a sink shares with its parent, and what it must not."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from opentelemetry.sdk.metrics.export import MetricExportResult
from prometheus_client import CollectorRegistry
from tests.exporters.samples import copied, health, started

from hicache_dbg.exporters.forking import _Unforked, unforked
from hicache_dbg.exporters.otel_providers import OwnProcess
from hicache_dbg.exporters.prometheus import PrometheusSink
from hicache_dbg.exporters.prometheus_dead import Claim
from hicache_dbg.exporters.prometheus_multiprocess import is_stale
from hicache_dbg.exporters.recording import RecordingSink, Rotation
from hicache_dbg.exporters.recording_format import read, recordings_in
from hicache_dbg.tracer.events import Copied, Started
from hicache_dbg.tracer.sink import PoolPages

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

LIMIT_S = 10


def in_child(work: Callable[[], object]) -> int:
    """Run ``work`` in a forked child with a time limit and return its exit status."""
    child = os.fork()
    if child == 0:  # pragma: no cover - runs in the child
        signal.alarm(LIMIT_S)
        try:
            work()
        except BaseException:  # noqa: BLE001 - its parent looks at the status
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("rotation", [None, Rotation(part_bytes=2000, keep=3)])
def test_a_forked_child_has_a_recording_of_its_own(
    tmp_path: Path, rotation: Rotation | None
) -> None:
    """Neither process touches the other's lines, parts or limits; the child's recording begins with the start."""
    sink = RecordingSink(tmp_path, "run", rotation=rotation)
    sink.emit([started(), copied(op_id=0)])

    def work() -> None:
        for number in range(20):
            sink.emit([copied(op_id=100 + number)])
        sink.close()

    assert in_child(work) == 0
    for number in range(1, 20):
        sink.emit([copied(op_id=number)])
    sink.close()
    parents = [path for path in recordings_in(tmp_path) if "-child" not in path.name]
    children = [path for path in recordings_in(tmp_path) if "-child" in path.name]
    for parts, last in ((parents, 19), (children, 119)):
        events = [event for part in parts for event in read(part)]
        ids = [event.op_id for event in events if isinstance(event, Copied)]
        assert ids == list(range(last - len(ids) + 1, last + 1))
        assert isinstance(events[0], Started)
        assert rotation is None or len(parts) == rotation.keep


def test_a_child_that_cannot_record_writes_into_no_other_file(tmp_path: Path) -> None:
    """If the child cannot create its recording, events are lost and counted, and it tries again."""
    folder = tmp_path / "here"
    folder.mkdir()
    sink = RecordingSink(folder, "run")
    sink.emit([started()])

    def work() -> None:
        folder.rename(tmp_path / "there")
        for _ in range(2):
            with pytest.raises(Exception, match="cannot record to") as caught:
                sink.emit([copied()])
            assert getattr(caught.value, "lost", 0) == 1
        (tmp_path / "there").rename(folder)
        sink.emit([copied()])

    assert in_child(work) == 0
    sink.close()
    assert [len(list(read(path))) for path in recordings_in(folder)] == [1, 2]


def test_a_forked_child_does_not_keep_the_port(registry: CollectorRegistry, port: int) -> None:
    """A worker that outlives its parent must not leave scrapers without an answer."""
    sink = PrometheusSink(registry, port=port, address="127.0.0.1")
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - runs in the child
        os.write(ready[1], b"x")
        signal.alarm(LIMIT_S)
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    sink.close()
    with socket.socket() as again:  # the parent is gone, so nobody may listen
        refused = again.connect_ex(("127.0.0.1", port))
    os.write(go[1], b"x")
    os.waitpid(child, 0)
    assert refused


def test_a_fork_during_a_scrape_leaves_the_child_a_sink_that_works(
    registry: CollectorRegistry,
) -> None:
    """The thread that was reading the pools does not exist in the child to finish."""
    reading, leave = threading.Event(), threading.Event()

    def pools() -> list[PoolPages]:
        reading.set()
        leave.wait(LIMIT_S)
        return []

    sink = PrometheusSink(registry, pool_state=pools)
    scrape = threading.Thread(target=lambda: list(registry.collect()))
    scrape.start()
    reading.wait(LIMIT_S)
    status = in_child(lambda: sink.emit([health()]))
    leave.set()
    scrape.join()
    assert status == 0


def test_no_fork_falls_into_the_middle_of_a_batch() -> None:
    """The library's locks are held while values change: a child forked then would deadlock."""
    entered, leave = threading.Event(), threading.Event()

    def busy() -> None:
        with unforked:
            entered.set()
            leave.wait(LIMIT_S)

    thread = threading.Thread(target=busy)
    thread.start()
    entered.wait(LIMIT_S)
    threading.Timer(0.05, leave.set).start()
    began = time.monotonic()
    assert in_child(unforked.__enter__) == 0
    assert time.monotonic() - began > 0.04
    thread.join()


MULTIPROCESS = """
import os, signal, sys, threading
from prometheus_client import CollectorRegistry, Counter
from hicache_dbg.exporters.forking import unforked
from hicache_dbg.exporters.otel_providers import OwnProcess
from hicache_dbg.exporters.prometheus import PrometheusSink
from hicache_dbg.tracer.events import Copied
import msgspec
event = msgspec.json.decode(sys.argv[1], type=Copied)
hosts = Counter("host", "the host's own", registry=CollectorRegistry())
sink = PrometheusSink(CollectorRegistry())
stop = threading.Event()
def busy():
    while not stop.is_set():
        sink.emit([event] * 50)
threading.Thread(target=busy, daemon=True).start()
for _ in range(40):
    child = os.fork()
    if child == 0:
        signal.alarm(3)
        hosts.inc()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        sys.exit(f"a child hung: {status}")
stop.set()
"""


def test_the_hosts_own_metrics_work_in_a_child_forked_under_load(tmp_path: Path) -> None:
    """In multiprocess mode the library has one lock for all values, including the host's."""
    event = msgspec.json.encode(copied()).decode()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MULTIPROCESS, event],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_a_fork_waits_for_one_batch_and_no_more() -> None:
    """A thread that takes the lock in a loop lets a waiting fork go first."""
    gate, taken, order = _Unforked(), threading.Event(), list[str]()

    def come_back() -> None:
        with gate, gate:
            taken.set()
            deadline = time.monotonic() + LIMIT_S
            while gate._no_fork_waits.is_set() and time.monotonic() < deadline:
                pass
        with gate:
            order.append("the same thread")

    thread = threading.Thread(target=come_back)
    thread.start()
    assert taken.wait(LIMIT_S)
    gate.before()
    order.append("the fork")
    gate.after()
    thread.join(LIMIT_S)
    assert order == ["the fork", "the same thread"]


def test_whoever_forks_with_the_lock_in_hand_lets_go_of_it_in_both() -> None:
    """If the forking thread holds the lock, neither process deadlocks, and both can take it again."""
    with unforked:
        child = os.fork()
        if child == 0:  # pragma: no cover - runs in the child
            signal.alarm(LIMIT_S)
    with unforked:
        if child == 0:  # pragma: no cover - as above
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_child_does_not_export_what_its_parent_counted() -> None:
    """The SDK's reader would go on in the child, with the parent's counts and connection."""
    sent: list[int] = []

    class Exporter:
        def export(self, _data: object, timeout_millis: float = 0) -> MetricExportResult:
            sent.append(int(timeout_millis))
            return MetricExportResult.SUCCESS

    exporter = OwnProcess(Exporter())

    def work() -> None:
        assert exporter.export(None, timeout_millis=2) is MetricExportResult.SUCCESS
        assert not sent

    assert in_child(work) == 0
    exporter.export(None, timeout_millis=1)
    assert sent == [1]


def test_a_child_does_not_hold_its_parents_claim(tmp_path: Path) -> None:
    """A child that outlives its parent must not make the parent's files look alive."""
    ready, go = os.pipe(), os.pipe()
    parent = os.fork()
    if parent == 0:  # pragma: no cover - runs in the child
        signal.alarm(LIMIT_S)
        claim = Claim(tmp_path)
        assert claim
        if os.fork() == 0:
            signal.alarm(LIMIT_S)
            os.write(ready[1], b"x")
            os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    os.waitpid(parent, 0)
    stale = is_stale(tmp_path / f"gauge_livesum_{parent}.db")
    os.write(go[1], b"x")
    assert stale


def test_a_live_process_of_another_numbering_keeps_its_gauges(tmp_path: Path) -> None:
    """The pid of a process in another container means nothing here: its lock shows that it lives."""
    gone = in_child(lambda: None)
    assert gone == 0
    unused = 4_194_301  # above any number that this kernel gives
    held = (tmp_path / f"hicache_dbg_{unused}.lock").open("w")
    fcntl.flock(held, fcntl.LOCK_EX)
    assert not is_stale(tmp_path / f"gauge_livesum_{unused}.db")
    held.close()
    assert is_stale(tmp_path / f"gauge_livesum_{unused}.db")
