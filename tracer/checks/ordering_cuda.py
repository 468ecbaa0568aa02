"""What torch reports of CUDA streams and events, as clocks: a pure translation on ints.

torch tells of events that are recorded, waited for and synchronised, and of streams and devices
that the host waits for. It does not tell of kernels that are launched by raw pointer, nor of the
replay of a graph: an access counts where whoever launches it says so. An event that is only polled
orders nothing here.
"""

from hicache_dbg.tracer.checks.ordering_clocks import ActorId, Clocks

__all__ = ["CudaOrder", "stream_actor"]

#: Below every thread's number, and below those of simulated streams.
_STREAMS = -(1 << 62)
Carrier = tuple[str, int]


def stream_actor(stream: int) -> ActorId:
    """A CUDA stream, given its handle (0 is the default stream), as an actor of its own."""
    return ActorId(_STREAMS - stream)


class CudaOrder:
    """Feeds the clocks from torch's reports; events and streams that were never seen are new."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._streams: set[int] = set()

    def handed(self, stream: int, thread: ActorId) -> ActorId:
        """``thread`` is about to give ``stream`` work, which comes after all it did; the stream."""
        self._streams.add(stream)
        self._clocks.meet_actor(stream_actor(stream), thread)
        return stream_actor(stream)

    def event_recorded(self, event: int, stream: int, thread: ActorId) -> None:
        """``event`` stands for all that ``stream`` was given so far, and for what led to it."""
        self._clocks.record(self.handed(stream, thread), _carrier(event))

    def event_waited(self, event: int, stream: int) -> None:
        """What ``stream`` is given from now on comes after ``event``."""
        self._streams.add(stream)
        self._clocks.wait(stream_actor(stream), _carrier(event))

    def event_synchronized(self, event: int, thread: ActorId) -> None:
        """``thread`` waited for ``event``."""
        self._clocks.wait(thread, _carrier(event))

    def event_forgotten(self, event: int) -> None:
        """``event`` is gone, or its number begins anew."""
        self._clocks.forget(_carrier(event))

    def stream_synchronized(self, stream: int, thread: ActorId) -> None:
        """``thread`` waited for all that ``stream`` was given."""
        self._clocks.meet_actor(thread, stream_actor(stream))

    def device_synchronized(self, thread: ActorId) -> None:
        """``thread`` waited for all streams."""
        for stream in self._streams:
            self.stream_synchronized(stream, thread)


def _carrier(event: int) -> Carrier:
    return "cuda_event", event
