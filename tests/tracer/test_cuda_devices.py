"""An engine on a device that is not the current one of any thread: its workers begin on device 0."""

from contextlib import closing

import numpy as np
import pytest
import torch
from tests.pools.copying import fill, snapshot

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.geometry import IoBackend, Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.kinds import index_k, mla
from hicache_dbg.tracer.events import Copied, Finding, Op
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no second CUDA device"),
]

PAGES, LAYERS, PAGE = 6, 5, 16
LAYOUTS = {IoBackend.KERNEL: Layout.PAGE_FIRST, IoBackend.DIRECT: Layout.PAGE_FIRST_DIRECT}


def prompt(number: int) -> np.ndarray:
    """Return tokens unique to this number."""
    return np.arange(PAGES * PAGE, dtype=np.int32) + 1000 * number


def round_trip(backend: IoBackend) -> None:
    """Back a prompt up, push it off the device and load it back; its bytes are the same."""
    group = PoolGroup.build(
        [mla(LAYERS, PAGE), index_k(LAYERS, PAGE)],
        device_pages=2 * PAGES,
        host_pages=8 * PAGES,
        layout=LAYOUTS[backend],
        device="cuda:1",
        pin=True,
    )
    with (
        closing(group),
        HiCacheController(group, policy="write_through", io_backend=backend) as controller,
    ):
        places = controller.alloc_device(PAGES)
        for pool in group.device.values():
            fill(pool, 1)
        torch.cuda.synchronize(1)
        written = {name: snapshot(pool) for name, pool in group.device.items()}
        for number in range(3):
            controller.insert(prompt(number), controller.alloc_device(PAGES) if number else places)
            controller.flush()
        match = controller.match(prompt(0))
        assert match.host_pages.size == PAGES
        ticket = controller.load_back(match)
        controller.wait_layer(LAYERS - 1, ticket)
        controller.unlock(match)
        controller.flush()
        for name, pool in group.device.items():
            for component, got in snapshot(pool).items():
                assert torch.equal(got[:, ticket.device_pages], written[name][component][:, places])


@pytest.mark.parametrize("backend", LAYOUTS)
def test_copies_on_another_device_are_whole(backend: IoBackend) -> None:
    """Untraced: every byte comes back."""
    assert torch.cuda.current_device() == 0
    round_trip(backend)


@pytest.mark.parametrize("level", [Checksum.LOADS, Checksum.THREE])
@pytest.mark.parametrize("backend", LAYOUTS)
def test_copies_on_another_device_are_verified(backend: IoBackend, level: Checksum) -> None:
    """Digests are taken there, by the device itself and by call, and none is skipped."""
    sink = MemorySink()
    with Runtime.start(Settings(gate=Gate.ON, checksum=level), sinks=[sink]) as runtime:
        round_trip(backend)
        assert runtime.flush()
        assert runtime.session.errors.counts() == {}
    assert sink.of(Finding) == []
    loads = [copy for copy in sink.of(Copied) if copy.op is Op.LOAD]
    assert sum(copy.verified for copy in loads) == PAGES * LAYERS * 2
    assert not any(copy.skipped for copy in sink.of(Copied))
