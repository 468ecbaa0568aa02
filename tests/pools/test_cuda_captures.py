"""CUDA graph capture on one thread while another uses a cache on the same device."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from threading import Event, Semaphore, Thread

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.pools.copying import fill, snapshot

from hicache_dbg.pools.backups import WritePolicy
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.geometry import IoBackend, Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.kinds import index_k, mla
from hicache_dbg.tracer.events import Copied, Finding
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Gate, Settings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

PAGES, LAYERS, PAGE = 3, 2, 4
#: Turns that the cache takes during a capture.
TURNS = 4
LAYOUTS = {IoBackend.KERNEL: Layout.PAGE_FIRST, IoBackend.DIRECT: Layout.PAGE_FIRST_DIRECT}
Tokens = npt.NDArray[np.int32]


def prompt(number: int, pages: int) -> Tokens:
    """Return tokens unique to this number."""
    return np.arange(pages * PAGE, dtype=np.int32) + 1000 * number


class Turns(Thread):
    """A thread that replaces the first prompt by another and loads it back, until stopped."""

    def __init__(self, controller: HiCacheController) -> None:
        super().__init__(daemon=True)
        self.controller, self.number = controller, 0
        self.taken, self.stop = Semaphore(0), Event()
        self.error: Exception | None = None

    def run(self) -> None:
        """Take turns."""
        try:
            while not self.stop.is_set():
                self.turn()
                self.taken.release()
        except Exception as error:  # noqa: BLE001 (the test raises it)
            self.error = error
            self.taken.release(TURNS)

    def turn(self) -> None:
        """Insert as much as the device holds, and load the first prompt back."""
        self.number += 1
        places = self.controller.alloc_device(2 * PAGES)
        self.controller.insert(prompt(self.number, 2 * PAGES), places)
        self.controller.flush()
        self.cached(on_host=PAGES)

    def cached(self, on_host: int) -> Ids:
        """Load the ``on_host`` pages of the first prompt; return its device pages."""
        controller = self.controller
        match = controller.match(prompt(0, PAGES))
        assert match.host_pages.size == on_host
        ticket = controller.load_back(match)
        controller.wait_layer(LAYERS - 1, ticket)
        controller.unlock(match)
        controller.flush()
        return ticket.device_pages


@contextmanager
def taking(turns: Turns) -> Iterator[None]:
    """Take turns while the body runs."""
    turns.start()
    try:
        yield
    finally:
        turns.stop.set()
        turns.join(60)
        if turns.error is not None:
            raise turns.error


def captured(value: torch.Tensor, turns: Turns) -> torch.cuda.CUDAGraph:
    """Return a graph that adds ``TURNS`` to ``value``, captured while so many turns were taken."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        for _ in range(TURNS):
            value.add_(1)
            assert turns.taken.acquire(timeout=60)
    return graph


def pools(backend: IoBackend) -> PoolGroup:
    """Return a pool and its sidecar; the device holds twice the first prompt."""
    return PoolGroup.build(
        [mla(LAYERS, PAGE), index_k(LAYERS, PAGE)],
        device_pages=2 * PAGES,
        host_pages=16,
        layout=LAYOUTS[backend],
        device="cuda",
        pin=True,
    )


@pytest.mark.parametrize("policy", ["write_through", "write_back"])
@pytest.mark.parametrize("backend", LAYOUTS)
def test_copies_and_a_graph_that_is_captured_beside_them_are_whole(
    backend: IoBackend, policy: WritePolicy
) -> None:
    """No copy fails, no capture is invalidated, and both the bytes and the graph are right."""
    value = torch.zeros(1, device="cuda")
    with (
        closing(pools(backend)) as group,
        HiCacheController(group, policy=policy, io_backend=backend) as controller,
    ):
        places = controller.alloc_device(PAGES)
        for pool in group.device.values():
            fill(pool, 1)
        written = {name: snapshot(pool) for name, pool in group.device.items()}
        controller.insert(prompt(0, PAGES), places)
        controller.flush()
        turns = Turns(controller)
        with taking(turns):
            graph = captured(value, turns)
        graph.replay()
        assert value.item() == TURNS
        pages = turns.cached(on_host=0)
        for name, pool in group.device.items():
            for component, got in snapshot(pool).items():
                assert torch.equal(got[:, pages], written[name][component][:, places])


def test_traced_copies_and_a_graph_that_is_captured_beside_them_are_whole() -> None:
    """The same holds while every tile is digested and compared."""
    sink = MemorySink()
    with Runtime.start(Settings(gate=Gate.ON), sinks=[sink]) as runtime:
        test_copies_and_a_graph_that_is_captured_beside_them_are_whole(
            IoBackend.KERNEL, "write_through"
        )
        assert runtime.flush()
    assert sink.of(Finding) == []
    assert sum(copy.verified for copy in sink.of(Copied)) > 0
