"""Translate what torch reports of CUDA streams and events into clocks; pure logic on ints.

torch reports events that are recorded, waited for and synchronized, and streams and devices that
the host waits for. It reports neither kernels launched by raw pointer nor graph replays; such an
access counts only if its launcher reports it. Polling an event orders nothing here.
"""

from hicache_dbg.tracer.checks.ordering_clocks import ActorId, Clocks

__all__ = ["CudaOrder", "stream_actor"]

#: Below the ids of all threads and of simulated streams.
_STREAMS = -(1 << 62)
Carrier = tuple[str, int]


def stream_actor(stream: int) -> ActorId:
    """Return the actor id of a CUDA stream, given its handle (0 is the default stream)."""
    return ActorId(_STREAMS - stream)


class CudaOrder:
    """Feeds the clocks from torch's reports; unknown events and streams count as new."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._streams: set[int] = set()

    def handed(self, stream: int, thread: ActorId) -> ActorId:
        """Order the work ``thread`` is about to queue after all it did.

        Return the stream's actor.
        """
        self._streams.add(stream)
        self._clocks.meet_actor(stream_actor(stream), thread)
        return stream_actor(stream)

    def event_recorded(self, event: int, stream: int, thread: ActorId) -> None:
        """Let ``event`` stand for everything queued on ``stream`` so far, and what led to it."""
        self._clocks.record(self.handed(stream, thread), _carrier(event))

    def event_waited(self, event: int, stream: int) -> None:
        """Order future work of ``stream`` after ``event``."""
        self._streams.add(stream)
        self._clocks.wait(stream_actor(stream), _carrier(event))

    def event_synchronized(self, event: int, thread: ActorId) -> None:
        """Record that ``thread`` waited for ``event``."""
        self._clocks.wait(thread, _carrier(event))

    def event_forgotten(self, event: int) -> None:
        """Drop an ``event`` that was destroyed, or whose handle is being reused."""
        self._clocks.forget(_carrier(event))

    def stream_synchronized(self, stream: int, thread: ActorId) -> None:
        """Record that ``thread`` waited for all work of ``stream``."""
        self._clocks.meet_actor(thread, stream_actor(stream))

    def device_synchronized(self, thread: ActorId) -> None:
        """Record that ``thread`` waited for all streams."""
        for stream in self._streams:
            self.stream_synchronized(stream, thread)


def _carrier(event: int) -> Carrier:
    return "cuda_event", event
