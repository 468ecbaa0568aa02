"""Digests beside SGLang's own copies: enqueued when an operation is submitted, done before it is over.

Nothing here waits for a device or reads an index: page ids are read on the device, when the digests
run. Where SGLang records an event for the operation's end, that event is recorded once more, behind
the digests and on their stream: whoever waits for it waits for them, and the next operation's copies
for nothing. Where there is none, the copy's stream waits.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from hicache_dbg.tracer.attach.sglang.gpu_reader import Reader
from hicache_dbg.tracer.attach.sglang.gpu_sides import Sides
from hicache_dbg.tracer.digest.driver import check, driven, driver
from hicache_dbg.tracer.digest.mark import Mark
from hicache_dbg.tracer.digest.select import DeviceDigester, digester_for

__all__ = ["A_LAUNCH_BYTES", "IN_LINE_BYTES", "Job", "Lane", "Part", "Slot"]

#: Up to so many bytes digests run in the copy's own stream: such copies wait for the host, not for the
#: device. Beyond, they run beside the copies that follow.
IN_LINE_BYTES = 8 << 20
#: So many bytes, 8 us of an H200, of a large backup are digested by one launch, from its begin on.
A_LAUNCH_BYTES = 32 << 20

_SMALLEST = 4096
#: Slots that are kept for later, 32 KB of the device each at least.
_MOST_SLOTS = 256


class Part(NamedTuple):
    """Digests of one component's layers ``first .. last - 1``, from word ``at`` of the slot on."""

    component: str
    first: int
    last: int
    at: int


class Slot:
    """Room on the device for the digests of one operation at a time, and the event behind them.

    ``parts`` are the digests, in ``words`` words; ``refused`` says why there are none. ``stream`` is one
    of ours: what lay in the room before was ours too.
    """

    def __init__(self, words: int, stream: torch.cuda.Stream) -> None:
        with torch.cuda.stream(stream):
            self.room = torch.empty(words, dtype=torch.int64, device=stream.device)
        self.event = timed_event(stream)
        self.handle: int = self.event.cuda_event
        self.address, self.size = self.room.data_ptr(), words
        self.parts: list[Part] = []
        self.words, self.refused = 0, ""
        #: On which it was used.
        self.streams: set[int] = set()
        self._views: dict[tuple[int, int, int], torch.Tensor] = {}

    def view(self, at: int, layers: int, pages: int) -> torch.Tensor:
        """Words ``at ..`` as int64 [layers, pages]."""
        view = self._views.get((at, layers, pages))
        if view is None:
            if len(self._views) >= 64:
                self._views.clear()
            view = self.room[at : at + layers * pages].view(layers, pages)
            self._views[at, layers, pages] = view
        return view

    def used_on(self, stream: int, device: torch.device) -> None:
        """Should the slot be dropped, its memory is not given away before this stream is done."""
        self.streams.add(stream)
        self.room.record_stream(torch.cuda.ExternalStream(stream, device))


class Job(Protocol):
    """What is digested of an operation: what its copies on ``stream`` moved.

    ``loads``: it is there behind the copies, no earlier. ``slot`` is where the digests go, and
    ``clock`` the events of its begin, if somebody takes that time, and its end.
    """

    stream: int
    loads: bool
    slot: "Slot | None"
    clock: tuple[Any, Any]

    def prepare(self) -> int:
        """Take a slot; how many bytes are to be digested."""
        ...

    def digest(self, on: int) -> None:
        """Enqueue the digests on a stream."""
        ...


class Lane:
    """The digests of one device: its digester, slots that are used again, and the streams beside SGLang's.

    An operation takes three calls of the driver: a wait, a launch a component, a record. A small one
    takes two, a large backup a launch for each 32 MB, and a wait or a record more.
    """

    def __init__(self, device: str) -> None:
        # There is no such driver on ROCm: said when the pool is built.
        self.raw_record = driver().cuEventRecord
        self.wait = driver().cuStreamWaitEvent
        #: Asks whether an event has come, by its handle: 0 if it has.
        self.query = driver().cuEventQuery
        self.digester = digester_for(device)
        self.device = self.digester.device
        index = self.device.index or 0
        #: Whether this thread's stream takes what is enqueued into a graph; without a look at the build.
        self.captures = torch._C._cuda_isCurrentStreamCapturing  # noqa: SLF001
        #: This thread's stream, as a raw handle: 0.2 us, not 8.
        self.stream = partial(torch._C._cuda_getCurrentRawStream, index)  # noqa: SLF001
        self.slots: deque[Slot] = deque()
        self._marks: deque[torch.cuda.Event] = deque()
        self._reader = Reader(self.device, sender(self.digester))
        self.sides = Sides(self.device, getattr(self.digester, "send", None))
        self._order = Mark()
        self._none = torch.empty(0, dtype=torch.int64)
        #: For who enqueues: what one operation takes follows on each other.
        self.lock = threading.Lock()

    def mark(self, stream: int) -> torch.cuda.Event:
        """An event that tells when ``stream`` came here; whose it is gives it back."""
        try:
            event = self._marks.popleft()
        except IndexError:
            event = timed_event(self._reader.stream)
        self.record(event.cuda_event, stream)
        return event

    def slot(self, words: int) -> Slot:
        """Room for ``words`` digests."""
        try:
            slot = self.slots.popleft()
        except IndexError:
            slot = None
        if slot is None or slot.size < words:
            slot = Slot(max(_SMALLEST, 1 << (words - 1).bit_length()), self._reader.stream)
        slot.parts, slot.words, slot.refused = [], 0, ""
        return slot

    def conclude(self, jobs: Sequence[Job], start: Any, over: Any, *, timed: bool) -> None:
        """Everything of one operation is in its streams: digest, and say when that is done.

        ``start`` and ``over`` are SGLang's events of its begin and its end, recorded before and behind
        its copies; ``timed`` says that they tell the time. Where there is no ``over`` the copies'
        streams are held up until the digests are done.
        """
        handle: int = getattr(over, "cuda_event", 0)
        with self.lock:
            size = sum([job.prepare() for job in jobs])
            streams = list(dict.fromkeys(job.stream for job in jobs))
            on = last = streams[0]
            side = self.sides[on]
            early = (
                size > A_LAUNCH_BYTES and handle and start and _backs_up(jobs) and not streams[1:]
            )
            if early and start.query():  # what is read is there already: nothing waits for it
                on = side
            elif size > IN_LINE_BYTES or streams[1:]:
                on = last = side
                self._follow(streams, start.cuda_event if early else handle, side)
            for job in jobs:
                job.digest(on)
            if on != last:
                self._hold(on, streams)
            elif early:
                self._wait_for(handle, side)
            for job in jobs:
                if handle and timed:
                    job.clock = start, over
                elif job.slot is not None:
                    self.record(job.slot.handle, last)
            if handle:
                self.record(handle, last)
            elif on == side:
                self._hold(on, streams)

    def record(self, event: int, stream: int) -> None:
        """Record an event on a stream, by their handles."""
        code = self.raw_record(event, stream)
        if code:
            check("cuEventRecord", code)

    def _follow(self, streams: list[int], event: int, on: int) -> None:
        """What is enqueued in ``on`` comes behind ``event``, or else behind all that is in ``streams``."""
        if event and len(streams) == 1:
            self._wait_for(event, on)
            return
        for stream in streams:
            self._order.record(stream)
            self._order.hold(on)

    def _wait_for(self, event: int, stream: int) -> None:
        code = self.wait(stream, event, 0)
        if code:
            check("cuStreamWaitEvent", code)

    def _hold(self, on: int, streams: list[int]) -> None:
        """What is enqueued in ``streams`` comes behind all that is in ``on``."""
        self._order.record(on)
        for stream in streams:
            self._order.hold(stream)

    def read(self, slot: Slot | None, *indices: torch.Tensor) -> Sequence[torch.Tensor]:
        """An operation's digests, if it has any, and ``indices``, on the CPU; blocks the calling thread alone."""
        return self._reader.read(self._none if slot is None else slot.room[: slot.words], *indices)

    def give_back(self, slot: Slot | None, mark: torch.cuda.Event | None) -> None:
        """What an operation had may be used again: its work is over."""
        if slot is not None and len(self.slots) < _MOST_SLOTS:
            self.slots.append(slot)
        if mark is not None:
            self._marks.append(mark)


def _backs_up(jobs: Sequence[Job]) -> bool:
    return not any(job.loads for job in jobs)


def timed_event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """An event that tells the time; torch makes it when it is first recorded."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


def sender(digester: DeviceDigester) -> Callable[[int, int, int, int], None]:
    """How words get from a digester's device into pinned memory."""
    send: Callable[[int, int, int, int], None] | None = getattr(digester, "send", None)
    return send or _copied


def _copied(target: int, source: int, words: int, stream: int) -> None:
    driven(driver().cuMemcpyAsync, target, source, 8 * words, stream)
