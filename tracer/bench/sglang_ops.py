"""Submit operations as SGLang does, without SGLang and without a GPU.

The pool is one that the attachment reads as SGLang's own, and everything behind the driver's calls
is real: a call is recorded, its operation submitted, and its record judged by the session's bus.
The device is a fake whose work is complete as soon as it is enqueued, and digests are numbers made
of page and layer.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hicache_dbg.tracer.attach.sglang.gpu_plans import DevicePool
from hicache_dbg.tracer.attach.sglang.kinds import BACKUP, LOAD
from hicache_dbg.tracer.attach.sglang.observer import Observer
from hicache_dbg.tracer.attach.sglang.session import SglangSession
from hicache_dbg.tracer.bench.host_lane import HostLane, Over
from hicache_dbg.tracer.digest.tiles import TileDigester
from hicache_dbg.tracer.settings import Checksum, Gate, Settings
from hicache_dbg.tracer.sink import Sink

__all__ = ["PAGE", "SglangOps"]

PAGE, ROW = 64, 8
VERSION = "0.5.23"


class MLATokenToKVPoolHost:
    """What the attachment reads of SGLang's class of this name, with rows of 8 B.

    It moves no bytes.
    """

    layout = "layer_first"

    def __init__(self, layers: int, pages: int) -> None:
        self.page_size, self.size, self.layer_num = PAGE, pages * PAGE, layers
        self.size_per_token = ROW * layers
        self.kv_buffer = torch.zeros(layers, pages * PAGE, 1, ROW, dtype=torch.uint8)
        self.device_kv_buffers = list(self.kv_buffer.clone())

    def backup_from_device_all_layer(self, *_: Any) -> None:
        """Copy all layers to the host."""

    def load_to_device_per_layer(self, *_: Any) -> None:
        """Copy one layer to the device."""

    def alloc(self, indices: torch.Tensor) -> torch.Tensor:
        """Allocate these indices."""
        return indices

    def free(self, indices: torch.Tensor) -> None:
        """Free these indices."""


class SglangOps:
    """Backups and loads of one pool under the tracer, over ``sets`` sets of ``pages`` pages.

    ``submit`` executes on the calling thread what SGLang's engine would execute there. ``device``
    is the attachment's record of the device pool.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        *,
        layers: int,
        pages: int,
        sets: int = 32,
        queue: int = 1 << 16,
    ) -> None:
        settings = Settings(gate=Gate.ON, checksum=Checksum.LOADS, queue=queue)
        self.layers, self.sets = layers, sets
        self.session = SglangSession(settings, sinks, TileDigester(), version=VERSION)
        self.observer = Observer(VERSION, lambda: self.session, lambda _: None)
        self.observer.on = True
        self.pool = MLATokenToKVPoolHost(layers, sets * pages)
        self.observer.built(self.pool, ())
        record = self.observer.registry.of(self.pool)
        assert record is not None
        size = sum(view.tile_bytes() for view in record.mirror.device.values())
        self.device = DevicePool(record, HostLane(_Numbers()), record.mirror.device, size)
        self.observer.devices.by_pool[id(self.pool)] = self.device
        self._ids = torch.arange(sets * pages * PAGE).split(pages * PAGE)
        self._over = Over()
        owners, host = self.observer.owners, MLATokenToKVPoolHost
        self._alloc, self._free = owners.giving(host.alloc), owners.taking(host.free)
        copying = self.observer.calls.copying
        self._backup = copying(host.backup_from_device_all_layer, BACKUP, _never)
        self._load = copying(host.load_to_device_per_layer, LOAD, _never)

    def submit(self, number: int) -> None:
        """Back up each set in turn, then load each in turn, and so on."""
        ids = self._ids[number % self.sets]
        (self.load if number // self.sets % 2 else self.backup)(ids)

    def live(self, number: int) -> None:
        """Run the whole life of a set: allocate, back up, load, free. This makes four records."""
        ids = self._ids[number % self.sets]
        self._alloc(self.pool, ids)
        self.backup(ids)
        self.load(ids)
        self._free(self.pool, ids)

    def backup(self, ids: torch.Tensor) -> None:
        """Back up all layers."""
        self._operation(self._backup, [(None, ids, ids, "kernel")])

    def load(self, ids: torch.Tensor) -> None:
        """Load all layers, with one call per layer."""
        calls = [(None, ids, ids, layer, "kernel") for layer in range(self.layers)]
        self._operation(self._load, calls)

    def _operation(self, method: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> None:
        frames = self.observer.frames
        frame = frames.begin(self.session.probe)
        frame.start = frame.over = self._over
        frame.timed = True
        for arguments in calls:
            method(self.pool, *arguments)
        frames.end(frame)


def _never(*call: Any) -> None:
    raise AssertionError(f"the pool is on a device: {call}")


class _Numbers:
    """A digester whose digests tell which tile they belong to."""

    def digest(
        self, _: Any, layers: range, pages: torch.Tensor, *, out: torch.Tensor, **__: Any
    ) -> None:
        """Number each tile of ``pages``, which are given by the first token of each, from 1."""
        first = torch.arange(layers.start, layers.stop).view(-1, 1) + 1
        out.copy_(first + 1000 * (pages // PAGE))
