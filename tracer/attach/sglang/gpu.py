"""Digests beside SGLang's own copies: enqueued on its transfer streams, joined before it goes on.

Nothing here waits for a device or reads an index: page ids are read on the device, when the digests
run. An operation's digests are done before the next thing in the copy's stream is, which is the
event that SGLang takes the operation's end from.
"""

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from hicache_dbg.tracer.digest.driver import check, driver
from hicache_dbg.tracer.digest.select import digester_for
from hicache_dbg.tracer.digest.side import SideStream
from hicache_dbg.tracer.view import View

__all__ = ["IN_LINE_BYTES", "Lane", "Part", "Slot", "Work"]

#: Up to so many bytes digests run in the copy's own stream: a launch is all that it takes, and such
#: copies wait for the host, not for the device. Beyond, they run beside the copy.
IN_LINE_BYTES = 8 << 20

_SMALLEST = 4096


@dataclass(frozen=True, slots=True)
class Part:
    """Digests of one component's layers ``first .. last - 1``, from word ``at`` of the slot on."""

    component: str
    first: int
    last: int
    at: int


class Slot:
    """Room for one operation's digests on the device, and the events between which it is done.

    Both tell the time: SGLang's calls return when their copies are enqueued, so that the host's clock
    knows nothing of how long these take.
    """

    def __init__(self, words: int, device: torch.device) -> None:
        self.words = torch.empty(words, dtype=torch.int64, device=device)
        self.began, self.event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for event in (self.began, self.event):  # torch makes an event when it is first recorded
            event.record(torch.cuda.current_stream(device))
        self.idle = True
        self._streams: set[int] = set()
        self._views: dict[tuple[int, int, int], torch.Tensor] = {}

    def view(self, at: int, layers: int, pages: int) -> torch.Tensor:
        """Words ``at ..`` as int64 [layers, pages]."""
        view = self._views.get((at, layers, pages))
        if view is None:
            if len(self._views) >= 64:
                self._views.clear()
            view = self.words[at : at + layers * pages].view(layers, pages)
            self._views[at, layers, pages] = view
        return view

    def used_on(self, stream: int, device: torch.device) -> None:
        """Should the slot be dropped, its memory is not given away before this stream is done."""
        if stream not in self._streams:
            self._streams.add(stream)
            self.words.record_stream(torch.cuda.ExternalStream(stream, device))

    def done(self) -> bool:
        """Whether the operation's device work is over."""
        return self.idle or bool(self.event.query())


class Lane:
    """The digests of one device: its digester, slots that are reused, a stream of ours a thread."""

    def __init__(self, device: str) -> None:
        driver()  # there is none on ROCm: said when the pool is built, not at every copy
        self.digester = digester_for(device)
        self.device = self.digester.device
        self._index = self.device.index or 0
        self._slots: deque[Slot] = deque()
        self._local = threading.local()
        self._reader = torch.cuda.Stream(self.device)

    def captures(self) -> bool:
        """Whether this thread's stream takes what is enqueued into a graph."""
        return torch.cuda.is_current_stream_capturing()

    def begin(self, words: int, size: int) -> "Work":
        """The device work of an operation on ``size`` bytes that yields ``words`` digests."""
        stream: int = torch._C._cuda_getCurrentRawStream(self._index)  # noqa: SLF001 - 0.2 us, not 8
        side = self._side() if size > IN_LINE_BYTES else None
        slot = self._slot(words)
        slot.used_on(stream, self.device)
        if side is not None:
            slot.used_on(side.handle, self.device)
        _record(slot.began, stream)
        return Work(self, slot, stream, side)

    def read(self, work: "Work", *indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """An operation's digests and ``indices``, on the CPU; blocks the calling thread alone."""
        with torch.cuda.stream(self._reader):
            return work.slot.words[: work.words].cpu(), *(index.cpu() for index in indices)

    def give_back(self, slot: Slot, *, idle: bool) -> None:
        """The slot may be used again: at once if ``idle``, or else when its event has come."""
        slot.idle = idle
        self._slots.append(slot)

    def _slot(self, words: int) -> Slot:
        try:
            slot = self._slots.popleft()
        except IndexError:
            slot = None
        if slot is not None and not slot.done():
            self._slots.append(slot)
            slot = None
        if slot is None or len(slot.words) < words:
            slot = Slot(max(_SMALLEST, 1 << (words - 1).bit_length()), self.device)
        slot.idle = False
        return slot

    def _side(self) -> SideStream:
        side: SideStream | None = getattr(self._local, "side", None)
        if side is None:
            side = self._local.side = SideStream(self.device)
        return side


@dataclass(slots=True)
class Work:
    """What one operation has enqueued so far."""

    lane: Lane
    slot: Slot
    stream: int
    side: SideStream | None
    parts: list[Part] = field(default_factory=list)
    words: int = 0
    refused: str = ""

    @property
    def beside(self) -> bool:
        """Whether the digests run on a stream of their own."""
        return self.side is not None

    def follow(self) -> None:
        """Digests from now on are of the bytes as they are when the copy's stream has come to here."""
        if self.side is not None:
            self.side.follow(self.stream)

    def digest(
        self, views: Mapping[str, View], layers: range, pages: torch.Tensor, unit: int
    ) -> None:
        """Digests of these layers' tiles.

        ``pages`` are indices on the device, of which each names page ``index // unit``.
        """
        stream = self.stream if self.side is None else self.side.handle
        for component, view in views.items():
            out = self.slot.view(self.words, len(layers), len(pages))
            refused = self.lane.digester.digest(
                view, layers, pages, out=out, unit=unit, stream=stream
            )
            if refused is not None:
                self.refused = refused
                return
            self.parts.append(Part(component, layers.start, layers.stop, self.words))
            self.words += out.numel()

    def join(self) -> None:
        """What the copy's stream holds from now on comes after the digests."""
        if self.side is not None and self.parts:
            self.side.hold(self.stream)

    def mark(self) -> None:
        """The operation's device work ends here."""
        _record(self.slot.event, self.stream)

    def ready(self) -> bool:
        """Whether copy and digests are over."""
        return bool(self.slot.event.query())

    def device_us(self) -> float:
        """How long the device took, from begin to mark; to be asked when it is :meth:`ready`."""
        return float(self.slot.began.elapsed_time(self.slot.event)) * 1e3


def _record(event: torch.cuda.Event, stream: int) -> None:
    code = driver().cuEventRecord(event.cuda_event, stream)
    if code:
        check("cuEventRecord", code)
