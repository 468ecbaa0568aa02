# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""A device that is a CPU: work is enqueued there as on a GPU, and is over when the test says so."""

from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import torch
from released_base import Setup
from released_traced import Traced

from hicache_dbg.tracer.attach.sglang.gpu import Lane, Slot, Work
from hicache_dbg.tracer.attach.sglang.gpu_plans import DevicePool
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
        self.handles, self.room = (1, 2), words
        self.idle = True
        self._views = {}

    def used_on(self, stream: int, device: torch.device) -> None:
        """Nobody else's memory."""


class HostWork(Work):
    """What was asked for is done."""

    def come(self) -> None:
        """The device is done."""
        assert isinstance(self.slot, HostSlot)
        self.slot.over = True


class HostLane(Lane):
    """The same bookkeeping over the digester for any device of torch; everything runs in line."""

    def __init__(self) -> None:
        self.digester = TorchDigester("cpu")
        self.device = self.digester.device
        self._slots = deque()
        self.over = True
        self.graph = False
        self.begun: list[HostWork] = []
        self.recorded: list[tuple[int, int]] = []
        self.waited: list[int] = []
        self._wait = self._waited

    def _waited(self, _: int, event: int, __: int) -> int:
        """As the driver's call: 0, for it succeeds."""
        self.waited.append(event)
        return 0

    def captures(self) -> bool:
        """As the test says."""
        return self.graph

    def begin(self, words: int, *, timed: bool) -> Work:
        """There is one stream, whose handle is 0."""
        slot = HostSlot(words)
        slot.over = self.over
        self.begun.append(HostWork(self, slot, 0, timed=timed))
        return self.begun[-1]

    def record(self, event: int, stream: int) -> None:
        """Nothing to record: events have come when the test says so."""
        self.recorded.append((event, stream))

    def read(self, work: Work, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """They are here."""
        return work.slot.words[: work.words], *given

    def _side(self) -> Any:
        return SimpleNamespace(follow=lambda _: None, hold=lambda _: None, handle=0)


def beside(run: Traced, setup: Setup) -> HostLane:
    """From now on this pool's device end is taken for one on a GPU."""
    lane, record = HostLane(), run.record(setup.pool)
    size = sum(view.tile_bytes() for view in record.mirror.device.values())
    known = DevicePool(record, lane, record.mirror.device, size)
    run.attachment.observer.devices.by_pool[id(setup.pool)] = known
    return lane
