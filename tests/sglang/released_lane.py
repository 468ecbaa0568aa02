# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""A device that is a CPU: work is enqueued there as on a GPU, and is over when the test says so."""

from collections import deque
from types import SimpleNamespace
from typing import cast

import torch
from released_base import Setup
from released_traced import Traced

from hicache_dbg.tracer.attach.sglang.gpu import Lane, Slot, Work
from hicache_dbg.tracer.attach.sglang.gpu_ops import DevicePool
from hicache_dbg.tracer.digest.torch_digester import TorchDigester

__all__ = ["HostLane", "HostSlot", "HostWork", "beside"]


class HostSlot(Slot):
    """Room on the CPU, whose event comes when the test says so, ``ms`` after its begin."""

    ms = 0.0

    def __init__(self, words: int) -> None:
        self.words = torch.empty(words, dtype=torch.int64)
        self.over = True
        began = SimpleNamespace(elapsed_time=lambda end: self.ms if end is self.event else -1.0)
        self.began = cast("torch.cuda.Event", began)
        self.event = cast("torch.cuda.Event", SimpleNamespace(query=lambda: self.over))
        self.idle = True
        self._views = {}


class HostWork(Work):
    """Nothing to record: what was asked for is done."""

    marked = False

    def mark(self) -> None:
        """No event."""
        self.marked = True

    def come(self) -> None:
        """The device is done."""
        assert isinstance(self.slot, HostSlot)
        self.slot.over = True


class HostLane(Lane):
    """The same bookkeeping over the digester for any device of torch."""

    def __init__(self) -> None:
        self.digester = TorchDigester("cpu")
        self.device = self.digester.device
        self._slots = deque()
        self.over = True
        self.graph = False
        self.begun: list[HostWork] = []

    def captures(self) -> bool:
        """As the test says."""
        return self.graph

    def begin(self, words: int, size: int) -> Work:
        """In line, whatever its size."""
        assert size >= 0
        slot = HostSlot(words)
        slot.over = self.over
        self.begun.append(HostWork(self, slot, 0, None))
        return self.begun[-1]

    def read(self, work: Work, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """They are here."""
        return work.slot.words[: work.words], *given


def beside(run: Traced, setup: Setup) -> HostLane:
    """From now on this pool's device end is taken for one on a GPU."""
    lane, record = HostLane(), run.record(setup.pool)
    size = sum(view.tile_bytes() for view in record.mirror.device.values())
    known = DevicePool(record, lane, record.mirror.device, size)
    run.attachment.observer.devices._pools[id(setup.pool)] = known
    return lane
