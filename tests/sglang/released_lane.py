# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""A device that is a CPU: work is enqueued there as on a GPU, and is over when the test says so."""

import threading
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import torch
from released_base import Setup
from released_traced import Traced

from hicache_dbg.tracer.attach.sglang.gpu import Lane, Slot
from hicache_dbg.tracer.attach.sglang.gpu_plans import DevicePool
from hicache_dbg.tracer.digest.torch_digester import TorchDigester

__all__ = ["HostLane", "HostMark", "HostSlot", "beside"]


class HostSlot(Slot):
    """Room on the CPU, whose event comes when the test says so."""

    def __init__(self, words: int) -> None:
        self.room = torch.empty(words, dtype=torch.int64)
        self.over = True
        self.event = cast("torch.cuda.Event", SimpleNamespace(query=lambda: self.over))
        self.handle, self.size = 2, words
        self.parts, self.words, self.refused = [], 0, ""
        self.streams = set()
        self._views = {}

    def used_on(self, stream: int, device: torch.device) -> None:
        """Nobody else's memory."""

    def come(self) -> None:
        """The device is done."""
        self.over = True


class HostMark:
    """An event of an operation's begin, ``ms`` before its end."""

    cuda_event = 1
    ms = 0.0

    def elapsed_time(self, _: Any) -> float:
        """As the test says."""
        return self.ms


class HostLane(Lane):
    """The same bookkeeping over the digester for any device of torch; everything runs in line."""

    def __init__(self) -> None:
        self.digester = TorchDigester("cpu")
        self.device = self.digester.device
        self._lock = threading.Lock()
        self._none = torch.empty(0, dtype=torch.int64)
        self._slots, self._marks = deque(), deque()
        self._side, self._order = 0, cast("Any", Order())
        self.over = True
        self.graph = False
        self.begun: list[HostSlot] = []
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

    def stream(self) -> int:
        """There is one, whose handle is 0."""
        return 0

    def mark(self, stream: int) -> Any:
        """Of a begin."""
        self.record(HostMark.cuda_event, stream)
        return HostMark()

    def slot(self, words: int) -> Slot:
        """Room on the CPU, a new one each time."""
        slot = HostSlot(words)
        slot.over = self.over
        self.begun.append(slot)
        return slot

    def record(self, event: int, stream: int) -> None:
        """Nothing to record: events have come when the test says so."""
        self.recorded.append((event, stream))

    def read(self, slot: Slot | None, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """They are here."""
        return self._none if slot is None else slot.room[: slot.words], *given


class Order:
    """The one stream is in order already."""

    def record(self, _: int) -> None:
        """Nothing to record."""

    def hold(self, _: int) -> None:
        """Nothing to wait for."""


def beside(run: Traced, setup: Setup) -> HostLane:
    """From now on this pool's device end is taken for one on a GPU."""
    lane, record = HostLane(), run.record(setup.pool)
    size = sum(view.tile_bytes() for view in record.mirror.device.values())
    known = DevicePool(record, lane, record.mirror.device, size)
    run.attachment.observer.devices.by_pool[id(setup.pool)] = known
    return lane
