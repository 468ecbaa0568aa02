"""Against a real journald: what was sent is what journalctl finds."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.exporters.journal import Journal
from tests.exporters.samples import copied, finding, health, started

from hicache_dbg.exporters.fields import MESSAGE_IDS
from hicache_dbg.exporters.journald import JournaldSink
from hicache_dbg.tracer.events import Copied, FaultClass, Finding, Op, Tier
from hicache_dbg.tracer.settings import Lines
from hicache_dbg.tracer.sink import SinkError

TABLE = r"grep HICACHE_DBG | sed -E 's/ h=[0-9]+ d=[0-9]+//' | sort | uniq -c"


@pytest.fixture
def sink(journal: Journal) -> Iterator[JournaldSink]:
    """A sink that sends to this test's journald."""
    sink = JournaldSink(journal.socket)
    yield sink
    sink.close()


def load(**changes: Any) -> Copied:
    """Return a load of the same pool as the sample's backup."""
    return copied(op=Op.LOAD, src=Tier.HOST, dst=Tier.DEVICE, **changes)


@pytest.mark.service
def test_journalctl_answers_by_pool_and_operation(journal: Journal, sink: JournaldSink) -> None:
    """A match on pool and operation returns those copies with all their fields."""
    sink.emit([copied(), load(), load(pool="index_k"), finding()])
    found = journal.lines("-o", "json", "HICACHE_POOL=deepseek_v4_c128", "HICACHE_OP=load")
    (entry,) = map(json.loads, found)
    assert entry["MESSAGE"].startswith("[HICACHE_DBG] pool=deepseek_v4_c128 op=load")
    assert entry["SYSLOG_IDENTIFIER"] == "hicache-dbg"
    assert entry["PRIORITY"] == "7"
    assert entry["HICACHE_BYTES"] == "131072"
    assert entry["HICACHE_SRC"] == "host"


@pytest.mark.service
def test_the_pipeline_of_the_design_gives_one_line_a_path(
    journal: Journal, sink: JournaldSink
) -> None:
    """The documented pipeline counts each path once, whatever the sizes, and no other line."""
    sink.emit([started(), *(copied(h=n, d=n) for n in range(1, 6)), load(), health()])
    command = (
        f"journalctl --namespace={journal.namespace} --no-pager -o cat -t hicache-dbg | {TABLE}"
    )
    journal.lines()
    table = subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout  # noqa: S602 - the pipeline is the property
    path = "pool=deepseek_v4_c128 op={} token_granular=False layout=page_first slot_page=256"
    assert [row.split(maxsplit=1) for row in table.splitlines()] == [
        ["5", "[HICACHE_DBG] " + path.format("backup")],
        ["1", "[HICACHE_DBG] " + path.format("load")],
    ]


@pytest.mark.service
def test_findings_are_found_by_class_and_as_errors(journal: Journal, sink: JournaldSink) -> None:
    """Findings are selected by fault class, by priority and by their message id."""
    sink.emit([copied(), finding(), finding(cls=FaultClass.SLOT_REUSE, layer=2), load()])
    assert len(journal.lines("-o", "cat", "HICACHE_FINDING=row_width")) == 1
    assert len(journal.lines("-o", "cat", "HICACHE_FINDING=slot_reuse", "HICACHE_LAYER=2")) == 1
    assert len(journal.lines("-o", "cat", "-p", "err")) == 2
    assert len(journal.lines("-o", "cat", f"MESSAGE_ID={MESSAGE_IDS[Finding]}")) == 2
    assert len(journal.lines("-o", "cat", f"MESSAGE_ID={MESSAGE_IDS[Copied]}")) == 2
    assert Counter(journal.lines("-F", "HICACHE_FINDING")) == Counter(["row_width", "slot_reuse"])


@pytest.mark.service
@pytest.mark.parametrize("size", [70_000, 220_000, 3_000_000])
def test_large_values_arrive_whole(journal: Journal, sink: JournaldSink, size: int) -> None:
    """A value larger than a datagram arrives through a sealed memory file."""
    advice = ("0123456789" * (size // 10))[:size]
    sink.emit([finding(advice=advice)])
    (entry,) = map(json.loads, journal.lines("-o", "json", "--all", "HICACHE_EVENT=finding"))
    assert entry["HICACHE_ADVICE"] == advice


UNPRIVILEGED = """
import os, sys
from pathlib import Path
import msgspec
from hicache_dbg.exporters.journald import JournaldSink
from hicache_dbg.tracer.events import Finding
event = msgspec.json.decode(sys.argv[2], type=Finding)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sink = JournaldSink(Path(sys.argv[1]))
sink.emit([event, msgspec.structs.replace(event, advice="x" * 1_000_000)])
"""


@pytest.mark.service
def test_a_sender_without_privileges_is_heard(journal: Journal) -> None:
    """Entries of an ordinary user arrive, including large ones, which journald accepts only sealed."""
    event = msgspec.json.encode(finding()).decode()
    command = [sys.executable, "-c", UNPRIVILEGED, str(journal.socket), event]
    subprocess.run(command, check=True)
    found = journal.lines("-o", "json", "--all", "HICACHE_EVENT=finding", "_UID=65534")
    assert [len(json.loads(entry)["HICACHE_ADVICE"]) for entry in found] == [
        len(finding().advice),
        1_000_000,
    ]


@pytest.mark.service
def test_an_entry_about_very_many_requests_arrives(journal: Journal, sink: JournaldSink) -> None:
    """Journald drops an entry of more than 1,024 fields silently: the first 500 requests are named."""
    many = tuple(f"request-{number}" for number in range(5000))
    sink.emit([copied(requests=many), finding(requests=many)])
    assert len(journal.lines("-o", "cat", "HICACHE_REQUEST=request-0")) == 2
    assert len(journal.lines("-F", "HICACHE_REQUEST")) == 500


@pytest.mark.service
def test_a_value_with_line_breaks_arrives_whole(journal: Journal, sink: JournaldSink) -> None:
    """Line breaks in a value neither split the entry nor forge another field."""
    advice = "first\nPRIORITY=0\n\nlast\n"
    sink.emit([finding(advice=advice)])
    (entry,) = map(json.loads, journal.lines("-o", "json", "HICACHE_EVENT=finding"))
    assert entry["HICACHE_ADVICE"] == advice
    assert entry["PRIORITY"] == "3"


@pytest.mark.service
def test_it_reconnects_when_journald_restarts(journal: Journal, sink: JournaldSink) -> None:
    """The same sink delivers events sent during and after a restart of journald."""
    sink.emit([copied(h=1)])
    journal.lines()  # stored before the daemon ends
    journal.stop()
    late = threading.Timer(0.05, journal.start)
    late.start()
    sink.emit([copied(h=2), copied(h=3)])
    late.join()
    sink.emit([copied(h=4)])
    assert sorted(journal.lines("-F", "HICACHE_H")) == ["1", "2", "3", "4"]


@pytest.mark.service
def test_a_stopped_journald_is_a_counted_loss(journal: Journal, sink: JournaldSink) -> None:
    """Without journald the batch is lost within the time limit and counted with the reason."""
    sink.emit([copied(h=1)])
    journal.stop()
    quick = JournaldSink(journal.socket, limit_s=0.05)
    with pytest.raises(
        SinkError, match=r"Connection refused; 2 of 2 entries not sent after waiting 0\.05 s"
    ) as caught:
        quick.emit([copied(), finding()])
    assert (caught.value.reason, caught.value.lost) == ("absent", 2)
    journal.start()
    quick.emit([copied(h=5)])
    quick.close()
    assert "5" in journal.lines("-F", "HICACHE_H")


def test_a_socket_that_the_host_closed_is_not_written_to(tmp_path: Path) -> None:
    """A host that daemonizes closes all descriptors: the number may be the host's own now, so we reconnect."""
    ours, hosts = tmp_path / "journal", tmp_path / "hosts"
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other,
    ):
        for server, path in ((journal, ours), (other, hosts)):
            server.bind(str(path))
            server.settimeout(0.0)
        for close in (False, True):
            sink = JournaldSink(ours)
            sink.emit([copied()])
            assert journal.recv(1 << 16)
            assert sink._socket is not None
            number = sink._socket.fileno()
            os.close(number)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as host:
                assert host.fileno() == number
                host.connect(str(hosts))
                if not close:
                    sink.emit([copied()])
                    assert journal.recv(1 << 16)
                sink.close()
                with pytest.raises(BlockingIOError):
                    other.recv(1)
                host.send(b"still open")
                assert other.recv(100) == b"still open"


@pytest.mark.service
def test_a_hanging_journald_blocks_no_longer_than_the_limit(journal: Journal) -> None:
    """A journald that does not read delays a batch up to the limit; what arrived is not counted as lost."""
    sink = JournaldSink(journal.socket, limit_s=0.1)
    os.kill(journal.daemon.pid, signal.SIGSTOP)
    try:
        begin = time.monotonic()
        with pytest.raises(SinkError) as caught:
            sink.emit([copied(h=n) for n in range(10_000)])
        waited = time.monotonic() - begin
    finally:
        os.kill(journal.daemon.pid, signal.SIGCONT)
    sink.close()
    assert caught.value.reason == "blocked"
    assert waited < 5.0  # 10,000 sends that waited 0.1 s each would take a quarter of an hour
    assert len(journal.lines("-o", "cat", "-t", "hicache-dbg")) == 10_000 - caught.value.lost


@pytest.mark.service
def test_nothing_is_lost_under_load(journal: Journal, sink: JournaldSink) -> None:
    """Twenty thousand events at full speed all arrive, and the finding among them."""
    for start in range(0, 20_000, 500):
        sink.emit([copied(h=start + n) for n in range(500)])
    sink.emit([finding()])
    assert len(journal.lines("-o", "cat", "-t", "hicache-dbg")) == 20_001
    assert len(journal.lines("-o", "cat", "-p", "err")) == 1


@pytest.mark.service
def test_paths_mode_sends_an_entry_a_path(journal: Journal) -> None:
    """In mode paths journald gets each path once, and every finding."""
    sink = JournaldSink(journal.socket, lines=Lines.PATHS)
    sink.emit([copied(), copied(), load(), finding(), finding()])
    sink.close()
    assert len(journal.lines("-o", "cat", "-t", "hicache-dbg")) == 4


def test_an_absent_socket_is_a_counted_loss(tmp_path: Path) -> None:
    """Without a socket the batch is lost within the time limit, and the error names the socket."""
    sink = JournaldSink(tmp_path / "socket", limit_s=0.02)
    with pytest.raises(SinkError, match=re.escape(str(tmp_path / "socket"))) as caught:
        sink.emit([copied()])
    assert (caught.value.reason, caught.value.lost) == ("absent", 1)
    sink.close()
