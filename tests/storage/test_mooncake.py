"""A real Mooncake Store: a master and two client processes, one of them killed."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from tests import services
from tests.pools.caching import accounted, sequences
from tests.pools.forking import FORKS, in_child
from tests.pools.stored import Bench, cache_of, stats_of, take_turns

from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.storage.mooncake import MooncakeStore
from hicache_dbg.pools.storage.results import PageState
from hicache_dbg.repro import mooncake_master
from hicache_dbg.repro.mooncake_master import Master, master, master_binary

pytestmark = pytest.mark.service

SEGMENT = 32 << 20
THREE = [[1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3]]
WAIT_S = 60.0
ROOT = Path(__file__).parents[2]
COUNT = 8


@pytest.fixture(scope="module")
def running() -> Iterator[Master]:
    """Run a master on the loopback."""
    here = find_spec("mooncake") is not None and master_binary() is not None
    services.require(here, "Mooncake Store is not installed (extra mooncake)")
    with master(lease_ms=200) as found:
        yield found


@pytest.fixture
def store(running: Master) -> Iterator[MooncakeStore]:
    """A client that lends memory, over an empty store."""
    found = MooncakeStore(running.address, running.metadata, segment_bytes=SEGMENT)
    found._client.remove_all(force=True)
    yield found
    found.close()


@FORKS
def test_a_forked_child_leaves_the_client_to_its_parent(store: MooncakeStore) -> None:
    """Each call is refused at once, and neither closing nor the destructor harms the parent."""
    bench = Bench(store, pages=4)
    bench.store(4)
    held = [store]

    def destroyed() -> None:
        held.clear()
        vars(store).clear()

    told = in_child(
        lambda: {(end.state.value, end.reason) for end in bench.store(4).results},
        lambda: set(bench.fetch(4)),
        lambda: store.exists(["a"]),
        lambda: store.discard("a"),
        store.close,
        destroyed,
    )
    why = "the client belongs to the process that this one was forked from; open a store here"
    assert told == [
        f"{{('failed', '{why}')}}",
        "{<PageState.FAILED: 'failed'>}",
        f"OSError: [Errno 107] Mooncake Store: {why}",
        *["None"] * 3,
    ]
    assert bench.fetch(4) == [PageState.OK] * 4


@pytest.mark.parametrize("taken", ["rpc", "metadata", "metrics"])
def test_a_master_whose_port_was_taken_first_gets_others(
    running: Master, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    """Between the choice of a port and its binding; a stranger who answers there is not the master."""
    own, at = mooncake_master._free_ports, ["rpc", "metadata", "metrics"].index(taken)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        trials = list[list[int]]()

        def free(count: int) -> list[int]:
            trials.append(own(count))
            if len(trials) == 1:
                trials[0][at] = port
            return trials[-1]

        monkeypatch.setattr(mooncake_master, "_free_ports", free)
        with master() as found:
            assert len(trials) == 2
            assert f":{port}" not in found.address + found.metadata
            assert found.address != running.address
            store = MooncakeStore(found.address, found.metadata, segment_bytes=SEGMENT)
            assert store.exists(["nothing"]) == [False]
            store.close()


@pytest.mark.parametrize("layout", [Layout.LAYER_FIRST, Layout.PAGE_FIRST])
def test_pages_come_back_byte_for_byte(store: MooncakeStore, layout: Layout) -> None:
    """More than one batch moves directly between host memory and the store, with all pools of each page."""
    bench = Bench(store, layout=layout, pages=40)
    before = [bench.page(page) for page in range(40)]
    assert all(end.good for end in bench.store(40).results)
    assert bench.fetch(40) == [PageState.OK] * 40
    assert [bench.page(page) for page in range(40)] == before
    assert store.fallback == ""


def test_a_cache_over_it_serves_what_its_host_let_go_of(store: MooncakeStore) -> None:
    """The same cache that works over files works over this store."""
    with cache_of(store, timeout=WAIT_S) as controller:
        take_turns(controller, sequences(THREE) * 3)
        accounted(controller)
        assert stats_of(controller) == {"stored": 11, "fetched": 22, "asked": 33}


def test_what_is_not_there_or_another_size_is_a_miss(store: MooncakeStore) -> None:
    """Missing, short and foreign objects are distinguished by the store's answer and the header."""
    bench = Bench(store)
    assert bench.fetch(1) == [PageState.MISSING]
    name = bench.keys[0].name
    store._client.put(name, b"x" * 100)
    assert bench.fetch(1) == [PageState.SHORT]
    bench.fill()
    bench.store(2)
    raw = store._client.get(bench.keys[1].name)
    store._client.remove(name, force=True)
    store._client.put(name, raw)
    assert bench.fetch(1) == [PageState.FOREIGN]


def test_the_fallback_brings_the_same_bytes(store: MooncakeStore) -> None:
    """If memory cannot be registered, bytes go through the client's buffer, and this is reported."""
    store._register(0, 1)
    assert "could not be registered" in store.fallback
    bench = Bench(store)
    before = [bench.page(page) for page in range(8)]
    bench.store(8)
    assert bench.fetch(8) == [PageState.OK] * 8
    assert [bench.page(page) for page in range(8)] == before


@pytest.mark.usefixtures("running")
def test_a_killed_client_takes_its_pages_along_and_nothing_else() -> None:
    """Another process's pages are read; after SIGKILL they are misses, never wrong bytes or a hang."""
    # A master of its own: it goes on offering the dead client's memory for a while.
    with master() as own:
        _read_and_kill(own)


def _read_and_kill(own: Master) -> None:
    reader = MooncakeStore(own.address, own.metadata, segment_bytes=0)
    command = [sys.executable, "-m", "tests.storage.lender", own.address, own.metadata]
    other = subprocess.Popen([*command, str(COUNT)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "stored\n"
        bench = Bench(reader)
        before = [bench.page(page) for page in range(COUNT)]
        assert bench.fetch(COUNT) == [PageState.OK] * COUNT
        assert [bench.page(page) for page in range(COUNT)] == before
        other.kill()
        other.wait(WAIT_S)
        assert set(bench.fetch(COUNT)) <= {PageState.MISSING, PageState.FAILED}
    finally:
        other.kill()
        other.communicate()
        reader.close()


@pytest.mark.usefixtures("running")
def test_a_dead_master_is_a_miss_for_everybody() -> None:
    """A cache whose master is gone goes on without it, and closes in bounded time."""
    with master() as own:
        client = MooncakeStore(own.address, own.metadata, segment_bytes=SEGMENT)
        with cache_of(client) as controller:
            take_turns(controller, sequences(THREE))
            own.kill()
            take_turns(controller, sequences(THREE))
            assert stats_of(controller)["fetched"] == 0


def test_a_master_that_is_stopped_is_a_failure_in_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client of its own accord waits half a minute, and longer than that to join."""
    monkeypatch.setenv("MC_RPC_TIMEOUT_MS", "500")
    services.require(master_binary() is not None, "Mooncake Store is not installed")
    with master() as own:
        store = MooncakeStore(own.address, own.metadata, segment_bytes=SEGMENT)
        bench = Bench(store)
        own.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        try:
            assert [end.state for end in bench.store(2).results] == [PageState.FAILED] * 2
            with pytest.raises(OSError, match="no client for master"):
                MooncakeStore(own.address, own.metadata, segment_bytes=SEGMENT)
        finally:
            own.process.send_signal(signal.SIGCONT)
        assert time.monotonic() - began < 8
        store.close()


class _HoldsWrites:
    """A client whose writes block until released."""

    def __init__(self, own: Any) -> None:
        self._own, self.writing, self.go_on = own, Event(), Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def batch_put_from_multi_buffers(self, *args: Any) -> Any:
        self.writing.set()
        assert self.go_on.wait(WAIT_S)
        return self._own.batch_put_from_multi_buffers(*args)


def test_a_write_that_hangs_does_not_hold_up_reads(store: MooncakeStore) -> None:
    """Each direction has its own header buffer and does not wait for the other."""
    bench = Bench(store)
    bench.store(1)
    own, store._client = store._client, _HoldsWrites(store._client)
    writer = Thread(target=lambda: Bench(store).store(1), daemon=True)
    reader = Thread(target=lambda: bench.fetch(1), daemon=True)
    writer.start()
    assert store._client.writing.wait(WAIT_S)
    reader.start()
    reader.join(5.0)
    came_back = not reader.is_alive()
    store._client.go_on.set()
    writer.join()
    reader.join()
    store._client = own
    assert came_back
