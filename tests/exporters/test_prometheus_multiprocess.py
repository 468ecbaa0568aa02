"""Several processes, one scrape: real processes, really killed."""

import ctypes
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.parser import text_string_to_metric_families
from tests.exporters.samples import copied, started

from hicache_dbg.exporters import prometheus_room
from hicache_dbg.exporters.closed_sets import LOSS_REASONS
from hicache_dbg.exporters.prometheus_dead import MOST_DEAD, Claim, is_claimed, put_together
from hicache_dbg.exporters.prometheus_multiprocess import shared_registry

# The library gives it no types.
opened: Callable[[str], Any] = MmapedDict

#: One rank: counts three copies, says so, and waits to be ended.
RANK = """
import json, sys
import msgspec
from hicache_dbg.exporters.prometheus import PrometheusSink
from hicache_dbg.tracer.events import Event
from hicache_dbg.tracer.sink import LookedUp, PoolPages
options = json.loads(sys.argv[1])
rank, port = options["rank"], options["port"]
pages = [PoolPages(pool="index_k", tier="host", state="free", pages=100 + rank)]
pages.append(LookedUp(tier="host", end="hit", pages=5))
sink = PrometheusSink(port=port, address="127.0.0.1", pool_state=lambda: pages, rank=rank)
events = msgspec.json.decode(sys.argv[2], type=list[Event])
sink.emit([msgspec.structs.replace(event, rank=rank) for event in events])
print("counted", flush=True)
sys.stdin.read()
sink.close()
"""

#: A file whose first key is no key.
DAMAGE = b"\x40\0\0\0\0\0\0\0\x05\0\0\0{{{{{{{{{{{{"

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that the processes share."""
    shared = tmp_path / "shared"
    shared.mkdir()
    return shared


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Return a function that starts ranks, which end after the test."""
    events = [started(), copied(), copied(), copied(trace_id="ab" * 16, span_id="cd" * 8)]
    data = msgspec.json.encode(events).decode()
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    with ExitStack() as running:

        def begin(**options: Any) -> subprocess.Popen[str]:
            process = running.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", RANK, json.dumps({"port": 0, **options}), data],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            assert process.stdout is not None
            assert process.stdout.readline() == "counted\n"
            return process

        yield begin


def told(port: int, query: str = "") -> str:
    """Return the text of a scrape."""
    url = f"http://127.0.0.1:{port}/metrics{query}"
    with urllib.request.urlopen(url, timeout=10) as response:
        text: str = response.read().decode()
    return text


def scrape(port: int, name: str, query: str = "") -> dict[str, float]:
    """Return the non-zero samples of ``name`` by rank."""
    return {
        sample.labels["rank"]: sample.value
        for family in text_string_to_metric_families(told(port, query))
        for sample in family.samples
        if sample.name == "hicache_dbg_" + name and sample.value
    }


def test_one_port_tells_of_every_rank(start: Start, port: int) -> None:
    """A scrape of one rank's port has the counters and pages of all ranks."""
    start(rank=0, port=port)
    start(rank=1)
    assert scrape(port, "copies_total") == {"0": 3.0, "1": 3.0}
    assert scrape(port, "copy_duration_seconds_count") == {"0": 3.0, "1": 3.0}
    assert scrape(port, "pool_pages") == {"0": 100.0, "1": 101.0}
    assert scrape(port, "rank_info") == {"0": 1.0, "1": 1.0}


def test_two_processes_of_one_rank_are_one_place(start: Start, port: int) -> None:
    """After a restart of a rank, or with two services in one folder, constants are not summed."""
    start(rank=0, port=port)
    start(rank=0)
    assert scrape(port, "rank_info") == {"0": 1.0}


def test_a_killed_rank_keeps_its_counters_and_loses_its_gauges(start: Start, port: int) -> None:
    """The copies of a killed rank stay counted and its gauges vanish, whether or not it was reaped."""
    start(rank=0, port=port)
    killed = start(rank=1)
    killed.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet asked for
    for reap in (lambda: None, killed.wait):
        reap()
        assert scrape(port, "copies_total") == {"0": 3.0, "1": 3.0}
        assert scrape(port, "pool_pages") == {"0": 100.0}
        assert scrape(port, "rank_info") == {"0": 1.0}
        assert 'hicache_dbg_queue_depth{rank="0"}' in told(port)  # an alert asks who is alive by it
        assert 'hicache_dbg_queue_depth{rank="1"}' not in told(port)


@pytest.mark.parametrize("damage", [b"", b"\xff" * 64, DAMAGE])
def test_a_damaged_file_costs_its_own_values_only(
    start: Start, folder: Path, port: int, damage: bytes
) -> None:
    """With a damaged file of another process, a scrape still returns the rest."""
    serving = start(rank=0, port=port)
    (folder / "counter_999999.db").write_bytes(damage)
    assert scrape(port, "copies_total") == {"0": 3.0}
    assert serving.poll() is None


def test_files_of_the_dead_are_put_together(start: Start, folder: Path, port: int) -> None:
    """Files of killed ranks are merged into one per type; those of live ranks are not touched."""
    start(rank=0, port=port)
    living = {path.name for path in folder.glob("*.db")}
    for rank in (1, 2, 3):
        killed = start(rank=rank)
        killed.kill()
        killed.wait()
    (folder / "counter_999999.db").write_bytes(b"\xff" * 64)  # nobody's claim: left alone
    counted = {str(rank): 3.0 for rank in range(4)}
    assert scrape(port, "copies_total") == counted
    before = len(list(folder.glob("*.db")))
    assert put_together(folder, most=3) == 0
    assert put_together(folder, most=2) == 3
    assert put_together(folder, most=0) == 0
    left = {path.name for path in folder.glob("*.db")}
    merged = {"counter_hicachedbg.db", "histogram_hicachedbg.db"}
    assert left == living | merged | {"counter_999999.db"}
    assert len(left) < before
    assert scrape(port, "copies_total") == counted
    assert scrape(port, "copy_duration_seconds_count") == counted
    assert scrape(port, "pool_pages") == {"0": 100.0}


def test_the_number_of_files_is_bounded(start: Start, folder: Path, port: int) -> None:
    """However many ranks come and go, a scrape leaves only a few of their files."""
    start(rank=0, port=port)
    for rank in range(1, MOST_DEAD + 2):
        killed = start(rank=rank)
        killed.kill()
        killed.wait()
    assert len(scrape(port, "copies_total")) == MOST_DEAD + 2
    assert len(list(folder.glob("counter_*.db"))) == 2
    assert len(scrape(port, "copies_total")) == MOST_DEAD + 2


#: Puts the files in a folder together and is killed at its n-th change of a name.
STOPPED = """
import os, pathlib, signal, sys
left = int(sys.argv[2])
def counted(name):
    real = getattr(pathlib.Path, name)
    def call(path, *args, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(path, *args, **options)
    setattr(pathlib.Path, name, call)
for name in ("unlink", "replace", "write_text"):
    counted(name)
from hicache_dbg.exporters.prometheus_dead import put_together
print(put_together(pathlib.Path(sys.argv[1]), most=0))
"""


def test_who_is_killed_while_putting_files_together_counts_nothing_twice(
    start: Start, folder: Path, port: int
) -> None:
    """A process may be killed at any point of a merge: each count appears once, and the files go in the end."""
    serving = start(rank=0, port=port)
    for rank in (1, 2):
        killed = start(rank=rank)
        killed.kill()
        killed.wait()
    counted = {str(rank): 3.0 for rank in range(3)}
    killed_at = 0
    while True:
        command = [sys.executable, "-c", STOPPED, str(folder), str(killed_at)]
        done = subprocess.run(command, capture_output=True, check=False, timeout=60)
        assert scrape(port, "copies_total") == counted
        assert scrape(port, "copy_duration_seconds_count") == counted
        if done.returncode == 0:
            break
        killed_at += 1
    assert killed_at > 5
    assert {path.name for path in folder.glob("counter_*")} == {
        f"counter_{serving.pid}.db",
        "counter_hicachedbg.db",
    }


def test_a_damaged_file_of_a_dead_rank_is_kept_apart(start: Start, folder: Path, port: int) -> None:
    """An unreadable file is neither merged nor removed, and the scrape continues without it."""
    start(rank=0, port=port)
    killed = [start(rank=rank) for rank in (1, 2)]
    for rank in killed:
        rank.kill()
        rank.wait()
    damaged = folder / f"counter_{killed[0].pid}.db"
    damaged.write_bytes(DAMAGE)
    assert put_together(folder, most=0) == 2
    assert damaged.exists()
    assert scrape(port, "copies_total") == {"0": 3.0, "2": 3.0}


@pytest.mark.skipif(
    "support_collectors_without_names" not in signature(CollectorRegistry).parameters,
    reason="this prometheus-client leaves nameless collectors out of scrapes by name",
)
def test_a_scrape_may_ask_for_names(start: Start, port: int) -> None:
    """A scrape for certain names gets those of every rank."""
    start(rank=0, port=port)
    start(rank=1)
    query = "?name[]=hicache_dbg_copies_total"
    assert scrape(port, "copies_total", query) == {"0": 3.0, "1": 3.0}


def test_who_is_stopped_while_putting_files_together_holds_nobody_up(tmp_path: Path) -> None:
    """A process starts without a lock and takes one later; files without a lock are left alone."""
    with (tmp_path / "hicache_dbg.lock").open("w") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        claim = Claim(tmp_path)
        assert put_together(tmp_path, most=-1) == 0
        assert is_claimed(tmp_path, str(os.getpid())) is None
    claim.renew()
    assert is_claimed(tmp_path, str(os.getpid()))


def test_two_scrapes_at_once_agree_on_who_is_dead(tmp_path: Path) -> None:
    """While one scrape looks at a dead process's lock, another does not take the process for alive."""
    lock = tmp_path / "hicache_dbg_4194305.lock"  # no pid is that high
    lock.touch()
    with lock.open("r+") as first, patch("fcntl.flock", wraps=fcntl.flock) as asked:
        assert is_claimed(tmp_path, "4194305") is False
        how = asked.call_args.args[1]
        fcntl.flock(first, how)
        assert is_claimed(tmp_path, "4194305") is False


#: A sink in a folder of its own file system; then ever more pools, until there is no room.
FILLED = """
import os, sys
import msgspec
from prometheus_client import CollectorRegistry
from hicache_dbg.exporters.prometheus import PrometheusSink
from hicache_dbg.tracer.events import Started
from hicache_dbg.tracer.sink import SinkError
begun = msgspec.json.decode(sys.argv[1], type=Started)
mirror, = begun.mirrors
def pools(numbers):
    named = [msgspec.structs.replace(mirror, pool=f"pool{n}") for n in numbers]
    return msgspec.structs.replace(begun, mirrors=tuple(named))
try:
    sink = PrometheusSink(CollectorRegistry())
    for n in range(0, 200, 5):
        sink.emit([pools(range(n, n + 5))])
    print("counted")
except SinkError as error:
    print(error.reason, error.lost)
except OSError as error:
    print("refused", error.errno)
"""


@pytest.mark.parametrize(
    ("size", "told"),
    [("4k", "refused 28"), ("64k", "refused 28"), ("1m", "enospc 1"), ("64m", "counted")],
)
def test_a_full_folder_is_an_error_and_kills_nobody(tmp_path: Path, size: str, told: str) -> None:
    """Without a block left, the library's own write would end the process with a bus error."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "hicache-dbg-test", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        done = subprocess.run(
            [sys.executable, "-c", FILLED, msgspec.json.encode(started()).decode()],
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(place)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        left = [path.name for path in place.iterdir() if path.stat().st_size == 0]
    finally:
        subprocess.run(["umount", str(place)], check=True)
    assert (done.returncode, done.stdout.strip()) == (0, told), done.stderr
    assert not [name for name in left if name.endswith(".db")]  # other scrapes would fail on these


#: Two sessions in one process; the first one ends.
TWO = """
import pathlib, sys
from prometheus_client import CollectorRegistry, generate_latest
from hicache_dbg.exporters.prometheus import PrometheusSink
from hicache_dbg.exporters.prometheus_multiprocess import shared_registry
registry = CollectorRegistry()
first, second = PrometheusSink(registry), PrometheusSink(registry)
first.close()
second.emit([])
print(generate_latest(shared_registry(pathlib.Path(sys.argv[1]))).decode().count("sink_errors_total{"))
"""


def test_two_sessions_of_one_process_share_its_claim(folder: Path) -> None:
    """The second does not wait for the lock that the first holds until the process ends."""
    done = subprocess.run(
        [sys.executable, "-c", TWO, str(folder)],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert int(done.stdout) == len(LOSS_REASONS)


def seven(path: Path) -> None:
    """Write a file in which the counter ``a`` is 7."""
    values = opened(str(path))
    values.write_value(json.dumps(["a", "a_total", {}, "help"]), 7.0, 0.0)
    values.close()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_folder_without_locks_is_read_and_counted_into(tmp_path: Path, number: int) -> None:
    """A network file system may have no locks: nothing is merged, and nothing fails."""
    lock = tmp_path / "hicache_dbg_4194305.lock"  # no pid is that high
    lock.touch()
    seven(tmp_path / "counter_4194305.db")
    with patch("fcntl.flock", side_effect=OSError(number, "no locks")):
        Claim(tmp_path).renew()
        assert put_together(tmp_path, most=0) == 0
        assert shared_registry(tmp_path).get_sample_value("a_total") == 7.0


def test_a_merge_without_room_changes_nothing(tmp_path: Path) -> None:
    """Files of the dead stay as they are if the disk is full."""
    with patch.object(prometheus_room, "_fallocate", lambda: lambda *_: -1):
        for pid in (4194305, 4194306):
            (tmp_path / f"hicache_dbg_{pid}.lock").touch()
            seven(tmp_path / f"counter_{pid}.db")
        with (
            patch.object(ctypes, "get_errno", lambda: errno.ENOSPC),
            pytest.raises(OSError, match="No space left"),
        ):
            put_together(tmp_path, most=0)
    assert shared_registry(tmp_path).get_sample_value("a_total") == 14.0
