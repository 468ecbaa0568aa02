"""Digests beside SGLang's own copies: enqueued when an operation is submitted, done before it is over.

Nothing here waits for the device or reads an index on the host: the kernels read the page ids when they
run. If SGLang records an event at an operation's end, we record that event again behind the digests,
on their stream. Whoever waits for it then waits for the digests too, and the next operation's copies
wait for nothing. Without such an event the copies' stream waits for the digests.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from hicache_dbg.tracer.attach.sglang.gpu_reader import Reader
from hicache_dbg.tracer.attach.sglang.gpu_sides import Sides
from hicache_dbg.tracer.digest.driver import addresses, check, driven, driver
from hicache_dbg.tracer.digest.mark import Mark
from hicache_dbg.tracer.digest.select import DeviceDigester, digester_for

__all__ = ["IN_LINE_BYTES", "LARGE_BYTES", "Job", "Lane", "Part", "Slot"]

#: Operations of up to this many bytes are digested on the copies' own stream: they are bound by the
#: host, not by the device. Larger ones are digested on a stream of ours.
IN_LINE_BYTES = 8 << 20
#: Backups of more bytes than this are digested while they are being copied, smaller ones afterwards.
LARGE_BYTES = 32 << 20

#: The fewest words of a slot, 32 KB of device memory.
_SMALLEST = 4096
#: The most slots kept for reuse.
_MOST_SLOTS = 256


class Part(NamedTuple):
    """Digests of a component's layers ``first .. last - 1``, starting at word ``at`` of the slot."""

    component: str
    first: int
    last: int
    at: int


class Slot:
    """Device memory for the digests of one operation at a time, and the event recorded behind them.

    ``parts`` are the digests, in ``words`` words; ``refused`` is the reason if there are none. The
    memory is allocated on ``stream``, one of ours, so that no other stream's pending work can be using it.
    """

    # The compiled helper reads these by the places of their slots.
    __slots__ = (
        *("_views", "address", "event", "handle", "parts", "refused", "room", "size", "streams"),
        "words",
    )

    def __init__(self, words: int, stream: torch.cuda.Stream) -> None:
        with torch.cuda.stream(stream):
            self.room = torch.empty(words, dtype=torch.int64, device=stream.device)
        self.event: Any = timed_event(stream)
        self.handle: int = self.event.cuda_event
        self.address, self.size = self.room.data_ptr(), words
        self.parts: list[Part] = []
        self.words, self.refused = 0, ""
        #: The streams that have used it.
        self.streams: set[int] = set()
        self._views: dict[tuple[int, int, int], torch.Tensor] = {}

    def view(self, at: int, layers: int, pages: int) -> torch.Tensor:
        """Return the words from ``at`` on as int64 [layers, pages]."""
        view = self._views.get((at, layers, pages))
        if view is None:
            if len(self._views) >= 64:
                self._views.clear()
            view = self.room[at : at + layers * pages].view(layers, pages)
            self._views[at, layers, pages] = view
        return view

    def used_on(self, stream: int, device: torch.device) -> None:
        """Keep the memory from being reused before ``stream`` is done with it, should the slot be dropped."""
        self.streams.add(stream)
        self.room.record_stream(torch.cuda.ExternalStream(stream, device))


class Job(Protocol):
    """One pool's part of an operation, whose copies are enqueued on ``stream``.

    ``slot`` receives the digests. ``clock`` holds the events of the operation's begin, if that time is
    taken, and of its end.
    """

    stream: int
    slot: "Slot | None"
    clock: tuple[Any, Any]

    @property
    def loads(self) -> bool:
        """Whether it is a load, which can be digested behind its copies only."""
        ...

    def prepare(self) -> int:
        """Take a slot, and return how many bytes are to be digested."""
        ...

    def digest(self, on: int, *, during: bool) -> None:
        """Enqueue the digests on a stream; ``during`` its copies, with few programs."""
        ...


class Lane:
    """The digests of one device: its digester, slots for reuse, and the streams beside SGLang's.

    An operation takes three driver calls: a wait, one launch per component, and a record. A small one
    takes no wait, a large backup a second one, and an operation whose events of SGLang's have no timing
    takes two more records.
    """

    def __init__(self, device: str) -> None:
        # Raises on ROCm, which has no such driver: reported when the pool is built.
        self.raw_record = driver().cuEventRecord
        self.wait = driver().cuStreamWaitEvent
        #: Queries an event by its handle; 0 if it has come.
        self.query = driver().cuEventQuery
        self.addresses = addresses(
            "cuStreamWaitEvent", "cuEventRecord", "cuLaunchKernelEx", "cuStreamIsCapturing"
        )
        self.digester = digester_for(device)
        self.device = self.digester.device
        index = self.device.index or 0
        #: Whether the current stream is capturing a graph; independent of how torch was built.
        self.captures = torch._C._cuda_isCurrentStreamCapturing  # noqa: SLF001
        #: The current stream's raw handle, in 0.2 us rather than 8.
        self.stream = partial(torch._C._cuda_getCurrentRawStream, index)  # noqa: SLF001
        #: What was used last is taken first: the caches may still hold it.
        self.slots: deque[Slot] = deque()
        self.marks: deque[torch.cuda.Event] = deque()
        self._reader = Reader(self.device, sender(self.digester))
        self.sides = Sides(self.device, getattr(self.digester, "send", None))
        self._order = Mark()
        self._none = torch.empty(0, dtype=torch.int64)
        #: Held while an operation enqueues: its calls must not interleave with another's.
        self.lock = threading.Lock()

    def mark(self, stream: int) -> torch.cuda.Event:
        """Record a timed event on ``stream``, and return it; :meth:`give_back` takes it back."""
        try:
            event = self.marks.pop()
        except IndexError:
            event = timed_event(self._reader.stream)
        self.record(event.cuda_event, stream)
        return event

    def slot(self, words: int) -> Slot:
        """Return an empty slot for ``words`` digests."""
        try:
            slot = self.slots.pop()
        except IndexError:
            slot = None
        if slot is None or slot.size < words:
            slot = Slot(max(_SMALLEST, 1 << (words - 1).bit_length()), self._reader.stream)
        slot.parts, slot.words, slot.refused = [], 0, ""
        return slot

    def conclude(self, jobs: Sequence[Job], start: Any, over: Any, *, timed: bool) -> None:
        """Digest an operation whose copies have all been enqueued, and say when the digests are done.

        Args:
            jobs: the operation's parts.
            start: SGLang's event of its begin, recorded before its copies and behind what they read.
            over: SGLang's event of its end, recorded behind its copies. Without it the copies' streams
                wait for the digests.
            timed: whether these events tell the time.
        """
        handle: int = getattr(over, "cuda_event", 0)
        with self.lock:
            size = sum([job.prepare() for job in jobs])
            streams = list(dict.fromkeys(job.stream for job in jobs))
            on = streams[0]
            beside = size > IN_LINE_BYTES or len(streams) > 1
            during = size > LARGE_BYTES and _may_run_during(jobs, streams, start, handle)
            if beside:
                on = self.sides[on]
                self._follow(streams, start.cuda_event if during else handle, on)
            for job in jobs:
                job.digest(on, during=during)
            if during:
                self._wait_for(handle, on)
            for job in jobs:
                if handle and timed:
                    job.clock = start, over
                elif job.slot is not None:
                    self.record(job.slot.handle, on)
            if handle:
                self.record(handle, on)
            elif beside:
                self._hold(on, streams)

    def record(self, event: int, stream: int) -> None:
        """Record an event on a stream, both given by their handles."""
        code = self.raw_record(event, stream)
        if code:
            check("cuEventRecord", code)

    def _follow(self, streams: list[int], event: int, on: int) -> None:
        """Make ``on`` wait for ``event`` or, without one, for everything enqueued on ``streams``."""
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
        """Make ``streams`` wait for everything enqueued on ``on``."""
        self._order.record(on)
        for stream in streams:
            self._order.hold(stream)

    def read(self, slot: Slot | None, *indices: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return an operation's digests, if any, and ``indices``, on the CPU; blocks this thread alone."""
        return self._reader.read(self._none if slot is None else slot.room[: slot.words], *indices)

    def give_back(self, slot: Slot | None, mark: torch.cuda.Event | None) -> None:
        """Take back what an operation used, now that its work is over."""
        if slot is not None and len(self.slots) < _MOST_SLOTS:
            self.slots.append(slot)
        if mark is not None:
            self.marks.append(mark)


def _may_run_during(jobs: Sequence[Job], streams: list[int], start: Any, over: int) -> bool:
    """Return whether digests may run beside the copies: the source is complete when they begin."""
    backups = not any(job.loads for job in jobs)
    return backups and len(streams) == 1 and start is not None and bool(over)


def timed_event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """Create an event with timing; torch creates it on its first record."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


def sender(digester: DeviceDigester) -> Callable[[int, int, int, int], None]:
    """Return how a digester's device copies words into pinned memory."""
    send: Callable[[int, int, int, int], None] | None = getattr(digester, "send", None)
    return send or _copied


def _copied(target: int, source: int, words: int, stream: int) -> None:
    driven(driver().cuMemcpyAsync, target, source, 8 * words, stream)
