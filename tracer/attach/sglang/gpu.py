"""Digests beside SGLang's own copies: enqueued when an operation is submitted, done before it is over.

Nothing here waits for a device or reads an index: page ids are read on the device, when the digests
run. Where SGLang records an event for the operation's end, that event is recorded once more, behind
the digests and on their stream: whoever waits for it waits for them, and the next operation's copies
for nothing. Where there is none, the copy's stream waits.
"""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from hicache_dbg.tracer.digest.driver import check, driver
from hicache_dbg.tracer.digest.select import digester_for
from hicache_dbg.tracer.digest.side import SideStream
from hicache_dbg.tracer.view import View

if TYPE_CHECKING:
    from hicache_dbg.tracer.digest.gpu import WholePages

__all__ = ["IN_LINE_BYTES", "Job", "Lane", "Part", "Slot", "Work"]

#: Up to so many bytes digests run in the copy's own stream: a launch is all that it takes, and such
#: copies wait for the host, not for the device. Beyond, they run beside the copies that follow.
IN_LINE_BYTES = 8 << 20

_SMALLEST = 4096


class Part(NamedTuple):
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
        self.handles: tuple[int, int] = (self.began.cuda_event, self.event.cuda_event)
        self.address, self.room = self.words.data_ptr(), words
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


class Job(Protocol):
    """What is digested when an operation has been submitted: ``size`` bytes, into ``work``.

    ``loads``: they are there behind the copies, no earlier.
    """

    size: int
    loads: bool
    work: "Work"

    def digest(self) -> None:
        """Enqueue the digests."""
        ...


class Lane:
    """The digests of one device: its digester, slots that are reused, a stream of ours a thread.

    On a machine whose calls of the driver take as long as a launch each of them counts: an operation
    is a wait, a launch a component, and a record, where SGLang has events that tell the time.
    """

    def __init__(self, device: str) -> None:
        self._record = driver().cuEventRecord  # there is none on ROCm: said when the pool is built
        self._wait = driver().cuStreamWaitEvent
        self.digester = digester_for(device)
        self.device = self.digester.device
        self._index = self.device.index or 0
        self._slots: deque[Slot] = deque()
        self._local = threading.local()
        self._reader = torch.cuda.Stream(self.device)

    def captures(self) -> bool:
        """Whether this thread's stream takes what is enqueued into a graph."""
        return torch._C._cuda_isCurrentStreamCapturing()  # noqa: SLF001 - without a look at the build

    def begin(self, words: int, *, timed: bool) -> "Work":
        """An operation that yields ``words`` digests begins on this thread's stream.

        ``timed``: somebody else records when.
        """
        stream: int = torch._C._cuda_getCurrentRawStream(self._index)  # noqa: SLF001 - 0.2 us, not 8
        slot = self._slot(words)
        if not timed:
            self.record(slot.handles[0], stream)
        return Work(self, slot, stream, timed=timed)

    def conclude(self, jobs: Sequence[Job], start: Any, over: Any, *, timed: bool) -> None:
        """Everything of one operation is in its streams: digest, and say when that is done.

        ``start`` and ``over`` are SGLang's events of its begin and its end, recorded before and behind
        its copies; ``timed`` says that they tell the time. Where there is no ``over`` the copy's stream
        is held up until the digests are done.
        """
        handle: int = getattr(over, "cuda_event", 0)
        on, size, loads = jobs[0].work.stream, 0, False
        streams = [on]
        for job in jobs:
            size += job.size
            loads = loads or job.loads
            if job.work.stream not in streams:
                streams.append(job.work.stream)
        side: SideStream | None = None
        early = 0  # a backup's source is there when its copy begins
        if size > IN_LINE_BYTES or len(streams) > 1:
            side = self._side()
            on = side.handle
            early = 0 if loads else handle and getattr(start, "cuda_event", 0)
            self._follow(side, streams, early or handle)
        for job in jobs:
            work = job.work
            work.on = on
            work.slot.used_on(on, self.device)
            job.digest()
        if side is not None and early:
            self._follow(side, streams, handle)
        for job in jobs:
            if handle and timed:
                job.work.clock = start, over
            else:
                self.record(job.work.slot.handles[1], on)
        if handle:
            self.record(handle, on)
        elif side is not None:
            for stream in streams:
                side.hold(stream)

    def record(self, event: int, stream: int) -> None:
        """Record an event on a stream, by their handles."""
        code = self._record(event, stream)
        if code:
            check("cuEventRecord", code)

    def _follow(self, side: SideStream, streams: list[int], event: int) -> None:
        """What is enqueued on the side comes behind ``event``, or else behind all that is in ``streams``."""
        if event and len(streams) == 1:
            code = self._wait(side.handle, event, 0)
            if code:
                check("cuStreamWaitEvent", code)
            return
        for stream in streams:
            side.follow(stream)

    def read(self, work: "Work", *indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """An operation's digests and ``indices``, on the CPU; blocks the calling thread alone."""
        with torch.cuda.stream(self._reader):
            return work.slot.words[: work.words].cpu(), *(index.cpu() for index in indices)

    def give_back(self, slot: Slot) -> None:
        """The slot may be used again."""
        slot.idle = True
        self._slots.append(slot)

    def drop(self, work: "Work") -> None:
        """Nobody will read these digests: the slot may be used again when they are done."""
        self.record(work.slot.handles[1], work.on)
        self._slots.append(work.slot)

    def _slot(self, words: int) -> Slot:
        try:
            slot = self._slots.popleft()
        except IndexError:
            slot = None
        if slot is not None and not slot.done():
            self._slots.append(slot)
            slot = None
        if slot is None or slot.room < words:
            slot = Slot(max(_SMALLEST, 1 << (words - 1).bit_length()), self.device)
        slot.idle = False
        return slot

    def _side(self) -> SideStream:
        side: SideStream | None = getattr(self._local, "side", None)
        if side is None:
            side = self._local.side = SideStream(self.device)
        return side


class Work:
    """What one operation has enqueued: ``parts`` of its digests, in ``words`` of the slot.

    ``stream`` is the copy's, ``on`` the one that the digests run on; ``refused`` says why there are
    none. ``clock`` are the events of its begin and its end.
    """

    __slots__ = ("_timed", "clock", "lane", "on", "parts", "refused", "slot", "stream", "words")

    def __init__(self, lane: Lane, slot: Slot, stream: int, *, timed: bool) -> None:
        self.lane, self.slot, self.stream, self.on = lane, slot, stream, stream
        self.parts: list[Part] = []
        self.words = 0
        self.refused = ""
        self.clock: tuple[Any, Any] = (slot.began, slot.event)
        self._timed = timed

    def digest(
        self, views: Mapping[str, View], layers: range, pages: torch.Tensor, count: int, unit: int
    ) -> None:
        """Digests of these layers' tiles.

        ``pages`` are ``count`` indices on the device, of which each names page ``index // unit``.
        """
        for component, view in views.items():
            out = self.slot.view(self.words, len(layers), count)
            refused = self.lane.digester.digest(
                view, layers, pages, out=out, unit=unit, stream=self.on
            )
            if refused is not None:
                self.refused = refused
                return
            self.parts.append(Part(component, layers.start, layers.stop, self.words))
            self.words += len(layers) * count

    def digest_whole(  # noqa: PLR0917
        self,
        launches: "Sequence[tuple[str, WholePages]]",
        layers: Sequence[range],
        ids: int,
        step: int,
        unit: int,
        count: int,
    ) -> None:
        """Digests of whole pages of all layers, a launch for each range of ``layers``."""
        for component, launch in launches:
            out = self.slot.address + 8 * self.words
            for some in layers:
                launch(some, self.on, ids, step, unit, count, out)
            self.parts.append(Part(component, 0, launch.rows, self.words))
            self.words += launch.rows * count

    def ready(self) -> bool:
        """Whether copy and digests are over."""
        return bool(self.clock[1].query())

    def device_us(self) -> float | None:
        """How long the device took, from begin to end; to be asked when it is :meth:`ready`.

        None where nobody took the time of its begin.
        """
        began, ended = self.clock
        if self._timed and began is self.slot.began:
            return None
        return float(began.elapsed_time(ended)) * 1e3
