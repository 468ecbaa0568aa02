"""A device that is a CPU, whose work is over as it is enqueued."""

import threading
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import torch

from hicache_dbg.tracer.attach.sglang.gpu import Lane, Slot

__all__ = ["HostLane", "HostSides", "HostSlot", "Over"]


class Over:
    """An event that has come."""

    cuda_event = 1

    def query(self) -> bool:
        """It has."""
        return True

    def elapsed_time(self, _: Any) -> float:
        """A millisecond lies between two."""
        return 1.0


class HostSlot(Slot):
    """Room on the CPU, and the event behind its digests."""

    def __init__(self, words: int, event: Any) -> None:
        self.room = torch.empty(words, dtype=torch.int64)
        self.event = event
        self.handle, self.size, self.address = 2, words, self.room.data_ptr()
        self.parts, self.words, self.refused = [], 0, ""
        self.streams = set()
        self._views = {}

    def used_on(self, stream: int, device: torch.device) -> None:
        """Nobody else's memory."""


class HostSides(dict[int, int]):
    """The stream beside each stream, none of which is better than another one."""

    def settle(self, stream: int) -> None:
        """There is nothing to measure."""


class HostLane(Lane):
    """The lane's own bookkeeping over a CPU; ``digester`` is called as that of a device is."""

    def __init__(self, digester: Any) -> None:
        self.digester = digester
        self.device = torch.device("cpu")
        self.lock = threading.Lock()
        self._none = torch.empty(0, dtype=torch.int64)
        self.slots, self._marks = deque(), deque()
        self.sides = cast("Any", HostSides({0: 1}))
        self._order = cast("Any", SimpleNamespace(record=id, hold=id))
        self.captures, self.stream = (
            bool,
            cast("Any", int),
        )  # there are no graphs, and one stream: 0
        self.wait = self.raw_record = self.query = cast("Any", lambda *_: 0)

    def mark(self, stream: int) -> Any:  # noqa: ARG002 - as the lane's own
        """It has come."""
        return Over()

    def slot(self, words: int) -> Slot:
        """One that was used before, if it is large enough."""
        slot = self.slots.popleft() if self.slots else None
        if slot is None or slot.size < words:
            slot = HostSlot(words, Over())
        slot.parts, slot.words, slot.refused = [], 0, ""
        return slot

    def read(self, slot: Slot | None, *indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """They are here; the slot is used again."""
        return self._none if slot is None else slot.room[: slot.words].clone(), *indices
