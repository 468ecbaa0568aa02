"""Indices on a GPU: copied as they are now, and read on the bus's thread once the device is done.

The caller may write an index tensor afterwards, and its values may not be computed yet. So a copy is
enqueued behind them on the caller's stream. Only the bus waits for it, and reads all pending copies
together on a stream of its own.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from hicache_dbg.tracer.digest.driver import driven, driver
from hicache_dbg.tracer.ledger import Pages

__all__ = ["MOST_BYTES", "MOST_CALLS", "CudaReader", "Kept", "LateIndices", "Reader", "Reading"]

#: The most that is kept per device; further calls are skipped and counted.
MOST_CALLS, MOST_BYTES = 4096, 32 << 20


@dataclass(slots=True, eq=False)
class Kept:
    """The indices of one call: ``slots`` once they are read, None before that or if they are ``lost``."""

    slots: Pages | None = None
    lost: bool = False
    queue: "_DeviceQueue | None" = None

    @property
    def settled(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.lost or self.slots is not None


class Reading(Protocol):
    """Copies to the host that are in flight."""

    def poll(self) -> list[Pages] | None:
        """Return the indices, flat int64, in order; None while the device is not done."""
        ...


class Reader(Protocol):
    """Keeps and reads indices of one device."""

    def keep(self, indices: torch.Tensor) -> Any:
        """Return what :meth:`read` reads later. Runs on the caller's thread and does not wait."""
        ...

    def read(self, kept: Sequence[Any]) -> Reading:
        """Begin to read what was kept. Runs on the bus's thread and does not wait."""
        ...


class CudaReader:
    """Copies indices within the device, behind the caller's work, then all of them to the host at once."""

    def __init__(self, device: torch.device) -> None:
        driver()  # fails on ROCm, which has none
        self._device = device
        self._index = device.index or 0
        self._stream = torch.cuda.Stream(device)
        self._events: deque[torch.cuda.Event] = deque()

    def keep(self, indices: torch.Tensor) -> "tuple[torch.Tensor, torch.cuda.Event]":
        """Return a copy, and the event behind it.

        Raises:
            RuntimeError: If a graph is being captured, which would record both.
        """
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("indices inside the capture of a CUDA graph are not read")
        try:
            event = self._events.popleft()
        except IndexError:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._device))  # torch makes it now
        copy = indices.reshape(-1).clone()
        stream = torch._C._cuda_getCurrentRawStream(self._index)  # noqa: SLF001 - 0.2 us, not 8
        driven(driver().cuEventRecord, event.cuda_event, stream)
        return copy, event

    def read(self, kept: "Sequence[tuple[torch.Tensor, torch.cuda.Event]]") -> "_CudaReading":
        """Begin to read, on a stream that waits for the callers' streams."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            for _, event in kept:
                self._stream.wait_event(event)
            flat = torch.cat([copy for copy, _ in kept]).to(torch.int64)
            done = torch.cuda.Event()
            done.record(self._stream)
        return _CudaReading(self, list(kept), flat, done)

    def finish(self, reading: "_CudaReading") -> list[Pages]:
        """Return the indices, and recycle their events."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            flat = reading.flat.cpu().numpy()
        self._events.extend(event for _, event in reading.kept)
        ends = np.cumsum([copy.numel() for copy, _ in reading.kept])[:-1]
        return np.split(flat, ends)


@dataclass(frozen=True, slots=True)
class _CudaReading:
    reader: CudaReader
    kept: "list[tuple[torch.Tensor, torch.cuda.Event]]"  # alive until the device has read them
    flat: torch.Tensor
    done: torch.cuda.Event

    def poll(self) -> list[Pages] | None:
        return self.reader.finish(self) if self.done.query() else None


class _DeviceQueue:
    """The indices that wait on one device, in the order of the calls."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Kept, Any, int]] = deque()
        self._in_flight: list[tuple[Kept, Any, int]] = []
        self._reading: Reading | None = None
        self._calls = self._bytes = 0

    def keep(self, indices: torch.Tensor) -> Kept | None:
        """Keep a call's indices; return None if there is no room."""
        size = indices.numel() * indices.element_size()
        with self._lock:
            if self._calls >= MOST_CALLS or self._bytes + size > MOST_BYTES:
                return None
            self._calls += 1
            self._bytes += size
        kept = Kept(queue=self)
        try:
            copy = self._reader.keep(indices)
        except BaseException:
            self._release(1, size)
            raise
        self._waiting.append((kept, copy, size))
        return kept

    def advance(self) -> None:
        """Take what was read, then begin to read what waits. Runs on the bus's thread."""
        try:
            if self._reading is not None:
                arrays = self._reading.poll()
                if arrays is None:
                    return
                for (kept, _, _), slots in zip(self._in_flight, arrays, strict=True):
                    kept.slots = slots
                self._finish()
            if self._waiting:
                self._in_flight = [self._waiting.popleft() for _ in range(len(self._waiting))]
                self._reading = self._reader.read([copy for _, copy, _ in self._in_flight])
        except BaseException:
            for kept, _, _ in self._in_flight:
                kept.lost = kept.slots is None
            self._finish()
            raise

    def _finish(self) -> None:
        self._release(len(self._in_flight), sum(size for _, _, size in self._in_flight))
        self._in_flight, self._reading = [], None

    def _release(self, calls: int, size: int) -> None:
        with self._lock:
            self._calls -= calls
            self._bytes -= size


class LateIndices:
    """Indices of every device; those on the CPU are copied at once.

    Args:
        reader: Creates the reader of a device.
        is_late: Returns whether indices are to be read later.
    """

    def __init__(
        self,
        reader: Callable[[torch.device], Reader] = CudaReader,
        is_late: Callable[[torch.Tensor], bool] = lambda indices: indices.device.type == "cuda",
    ) -> None:
        self._reader = reader
        self._is_late = is_late
        self._queues: dict[torch.device, _DeviceQueue | None] = {}
        self._lock = threading.Lock()

    def keep(self, indices: Any) -> Kept | None:
        """Keep a call's indices as they are now; they are lost without room. Return None if nobody reads them.

        Raises:
            Exception: Whatever the device's reader raised; the indices are lost.
        """
        if not isinstance(indices, torch.Tensor):
            return None
        if self._is_late(indices):
            queue = self._queue(indices.device)
            return None if queue is None else queue.keep(indices) or Kept(lost=True)
        if indices.device.type != "cpu":
            return None
        return Kept(np.array(indices.reshape(-1).numpy(), np.int64))

    def poll(self, kept: Kept) -> bool:
        """Return whether the indices have been read, or never will be. Runs on the bus's thread."""
        if not kept.settled and kept.queue is not None:
            kept.queue.advance()
        return kept.settled

    def _queue(self, device: torch.device) -> _DeviceQueue | None:
        """Return a device's queue; None if it has no reader, which its first call was told."""
        if device not in self._queues:
            with self._lock:
                if device not in self._queues:
                    self._queues[device] = None
                    self._queues[device] = _DeviceQueue(self._reader(device))
        return self._queues[device]
