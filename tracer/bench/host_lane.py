"""A fake device on the CPU whose work is complete as soon as it is enqueued."""

import threading
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import torch

from hicache_dbg.tracer.attach.sglang.gpu import Lane, Slot

__all__ = ["HostLane", "HostSides", "HostSlot", "Over"]


class Over:
    """An event that has already completed."""

    cuda_event = 1

    def query(self) -> bool:
        """Return True: the event is complete."""
        return True

    def elapsed_time(self, _: Any) -> float:
        """Return one millisecond between any two events."""
        return 1.0


class HostSlot(Slot):
    """A slot in CPU memory, with the event that follows its digests."""

    def __init__(self, words: int, event: Any) -> None:
        self.room = torch.empty(words, dtype=torch.int64)
        self.event = event
        self.handle, self.size, self.address = 2, words, self.room.data_ptr()
        self.parts, self.words, self.refused = [], 0, ""
        self.streams = set()
        self._views = {}

    def used_on(self, stream: int, device: torch.device) -> None:
        """Do nothing: no allocator has to know of the use."""


class HostSides(dict[int, int]):
    """The side streams of a device on which no stream is better than another."""

    def settle(self, stream: int) -> None:
        """Do nothing: there is nothing to measure."""


class HostLane(Lane):
    """The lane's own bookkeeping over a CPU; ``digester`` is called like a device's."""

    def __init__(self, digester: Any) -> None:
        self.digester = digester
        self.device = torch.device("cpu")
        self.lock = threading.Lock()
        self._none = torch.empty(0, dtype=torch.int64)
        self.slots, self.marks = deque(), deque()
        self.sides = cast("Any", HostSides({0: 1}))
        self._order = cast("Any", SimpleNamespace(record=id, hold=id))
        self.captures, self.stream = (
            bool,
            cast("Any", int),
        )  # no graph capture, and a single stream: 0
        self.wait = self.raw_record = self.query = cast("Any", lambda *_: 0)
        self.addresses = ()

    def mark(self, stream: int) -> Any:  # noqa: ARG002 - as the lane's own
        """Return a completed event."""
        return Over()

    def slot(self, words: int) -> Slot:
        """Return a free slot if it is large enough, else a new one."""
        slot = self.slots.popleft() if self.slots else None
        if slot is None or slot.size < words:
            slot = HostSlot(words, Over())
        slot.parts, slot.words, slot.refused = [], 0, ""
        return slot

    def read(self, slot: Slot | None, *indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the digests, which are already on the host, and release the slot."""
        return self._none if slot is None else slot.room[: slot.words].clone(), *indices
