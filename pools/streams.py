"""Streams of work and events between them: real on CUDA, simulated on CPU, one interface.

A stream does its work in order; only events order different streams. On CPU a seed chooses among
the orders that a device would be free to take, so that a missing wait shows up in a test, and shows
up again with the same seed.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Protocol

import torch

__all__ = [
    "CudaStreams",
    "Event",
    "SimulatedStreams",
    "Stream",
    "StreamError",
    "Streams",
    "marker",
]


class StreamError(RuntimeError):
    """Streams wait for each other, or for an event that no stream will ever reach."""


class Event(Protocol):
    """A point in a stream's work."""

    def query(self) -> bool:
        """Return whether the work before that point is done."""
        ...

    def synchronize(self) -> None:
        """Block until the work before that point is done."""
        ...


class Stream(Protocol):
    """Work that runs in the order in which it is submitted."""

    def submit(self, work: Callable[[], object]) -> None:
        """Append ``work``."""
        ...

    def record(self) -> Event:
        """Return an event at the end of the work submitted so far."""
        ...

    def wait_for(self, event: Event) -> None:
        """Make everything submitted from now on wait for ``event``."""
        ...


class Streams(Protocol):
    """Streams of one device, by name."""

    def stream(self, name: str) -> Stream:
        """Return the stream called ``name``, created on first use."""
        ...

    def synchronize(self) -> None:
        """Block until all work on all streams is done."""
        ...


def marker(device: torch.device) -> Callable[[], Event | None]:
    """Return a function that marks the work queued so far on the caller's stream of ``device``.

    On CPU, work is done when its call returns and there is nothing to wait for: the mark is None.
    """
    return CudaStreams(device).mark if device.type == "cuda" else _nothing_queued


def _nothing_queued() -> None:
    return None


class SimulatedStreams:
    """Streams whose work runs on the calling thread, interleaved according to a seed.

    Work runs only when somebody synchronizes: one piece at a time, from a stream chosen at random
    among those whose next piece may run. ``order`` lists the streams in the order in which they
    ran. Not thread-safe.
    """

    def __init__(self, seed: int = 0) -> None:
        self.order: list[str] = []
        self._random = Random(seed)  # noqa: S311 (an order to try, not a secret)
        self._streams: dict[str, SimulatedStream] = {}

    def stream(self, name: str) -> "SimulatedStream":
        """Return the stream called ``name``, created on first use."""
        return self._streams.setdefault(name, SimulatedStream(name, self))

    def synchronize(self) -> None:
        """Run all work on all streams."""
        self.run_until(lambda: not any(stream.queue for stream in self._streams.values()))

    def run_until(self, reached: Callable[[], bool]) -> None:
        """Run one piece of work after another until ``reached`` returns True."""
        while True:
            ready = [stream for stream in self._streams.values() if stream.ready()]
            if reached():
                return
            if not ready:
                blocked = [name for name, stream in self._streams.items() if stream.queue]
                raise StreamError(
                    f"nothing can run: streams {blocked or 'none'} hold work, and each waits for "
                    "an event that no other will reach; look for a wait before its record"
                )
            chosen = self._random.choice(ready)
            self.order.append(chosen.name)
            chosen.step()


class SimulatedEvent:
    """An event that is set when the simulation passes it."""

    def __init__(self, streams: SimulatedStreams) -> None:
        self.passed = False
        self._streams = streams

    def query(self) -> bool:
        """Return whether the work before that point is done."""
        return self.passed

    def synchronize(self) -> None:
        """Run streams, this and others in seeded order, until the event is passed."""
        self._streams.run_until(self.query)


class SimulatedStream:
    """A queue of work, events to pass and events to wait for."""

    def __init__(self, name: str, streams: SimulatedStreams) -> None:
        self.name = name
        self.queue: deque[Callable[[], object] | _Wait] = deque()
        self._streams = streams

    def submit(self, work: Callable[[], object]) -> None:
        """Append ``work``."""
        self.queue.append(work)

    def record(self) -> SimulatedEvent:
        """Return an event at the end of the work submitted so far."""
        event = SimulatedEvent(self._streams)

        def pass_it() -> None:
            event.passed = True

        self.queue.append(pass_it)
        return event

    def wait_for(self, event: Event) -> None:
        """Make everything submitted from now on wait for ``event``."""
        self.queue.append(_Wait(event))

    def ready(self) -> bool:
        """Return whether the next piece of work may run."""
        while self.queue and isinstance(self.queue[0], _Wait) and self.queue[0].event.query():
            self.queue.popleft()
        return bool(self.queue) and not isinstance(self.queue[0], _Wait)

    def step(self) -> None:
        """Run the next piece of work; call only when :meth:`ready`."""
        work = self.queue.popleft()
        if not isinstance(work, _Wait):
            work()


class _Wait:
    def __init__(self, event: Event) -> None:
        self.event = event


class CudaStreams:
    """Streams of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: dict[str, CudaStream] = {}

    def stream(self, name: str) -> "CudaStream":
        """Return the stream called ``name``, created on first use."""
        if name not in self._streams:
            self._streams[name] = CudaStream(torch.cuda.Stream(self._device))
        return self._streams[name]

    def synchronize(self) -> None:
        """Block until all work on the device is done."""
        torch.cuda.synchronize(self._device)

    def mark(self) -> Event:
        """Return an event at the end of the work queued so far on the caller's current stream."""
        return CudaStream(torch.cuda.current_stream(self._device)).record()


class CudaStream:
    """A CUDA stream behind the common interface."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.cuda = stream

    def submit(self, work: Callable[[], object]) -> None:
        """Call ``work`` now; what it launches goes to this stream."""
        with torch.cuda.stream(self.cuda):
            work()

    def record(self) -> torch.cuda.Event:
        """Return an event at the end of the work submitted so far."""
        event = torch.cuda.Event()
        event.record(self.cuda)
        return event

    def wait_for(self, event: Event) -> None:
        """Make everything submitted from now on wait for ``event``, without blocking the host."""
        if isinstance(event, torch.cuda.Event):
            self.cuda.wait_event(event)
        else:
            event.synchronize()
