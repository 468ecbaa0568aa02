"""The order of real CUDA streams: torch's GPU trace and kernels that say what they touch."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.kinds import index_k, mla
from hicache_dbg.pools.streams import CudaStreams, Event
from hicache_dbg.repro.faults.base import inside
from hicache_dbg.tracer.attach.hicache_streams import Kernel, Touch
from hicache_dbg.tracer.events import FaultClass, Finding, Health
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

LAYERS, PAGE, PAGES = 2, 64, 4


@contextmanager
def cache() -> Iterator[tuple[HiCacheController, Runtime, MemorySink]]:
    """A cache on the GPU under the tracer, digests left out."""
    sink = MemorySink()
    geometries = (mla(LAYERS, PAGE), index_k(LAYERS, PAGE, "bf16"))
    settings = Settings(gate=Gate.ON, checksum=Checksum.OFF)
    with (
        Runtime.start(settings, sinks=[sink]) as runtime,
        HiCacheController(
            PoolGroup.build(
                geometries,
                device_pages=16,
                host_pages=32,
                layout=Layout.PAGE_FIRST,
                device="cuda",
                pin=True,
            )
        ) as controller,
    ):
        yield controller, runtime, sink
        controller.group.close()


def written(pool: DevicePool, pages: list[int]) -> Kernel:
    """A kernel that writes all layers of ``pages``, and says so."""
    # On the device beforehand: to upload them between writes would let the host wait for those.
    where = torch.tensor(pages, device="cuda")

    def fill() -> None:
        for buffer in pool.buffers.values():
            for tensor in buffer.tensors:
                tensor.view(torch.uint8).index_fill_(0, where, 7)

    return Kernel("fill", fill, (Touch(pool, tuple(range(LAYERS)), pages, writes=True),))


def turn(controller: HiCacheController, streams: CudaStreams, seed: int) -> None:
    """Write a sequence's pages on a stream of the model's own, and insert them."""
    tokens = np.arange(PAGES * PAGE, dtype=np.int32) + 1000 * seed
    pages = controller.alloc_device(PAGES)
    for pool in controller.group.device.values():
        streams.stream("forward").submit(written(pool, pages.tolist()))
    controller.insert(tokens, pages)
    controller.flush()


def no_mark() -> Event | None:
    """The copy is given nothing to wait for."""
    return None


def test_copies_that_wait_for_the_models_event_are_never_accused() -> None:
    """The engine marks the model's stream before each copy: torch reports it, and all is in order."""
    with cache() as (controller, runtime, sink):
        streams = CudaStreams(torch.device("cuda"))
        inside(controller).mark = streams.stream("forward").record
        for seed in range(3):
            turn(controller, streams, seed)
        assert runtime.flush()
        assert controller.stats.backups > 0
        assert sink.of(Finding) == []
    assert sink.of(Health)[-1].errors == {}


def test_a_backup_without_a_wait_is_a_race_on_a_gpu_too() -> None:
    """Whether or not it read the wrong bytes this time."""
    with cache() as (controller, runtime, sink):
        streams = CudaStreams(torch.device("cuda"))
        inside(controller).mark = no_mark
        turn(controller, streams, 0)
        assert runtime.flush()
        assert controller.stats.backups > 0
        found = sink.of(Finding)
        assert {finding.cls for finding in found} == {FaultClass.STORE_BEFORE_WRITE}
        assert {finding.check for finding in found} == {"ordering"}
        torch.cuda.synchronize()
