"""A stream of ours beside the engine's, ordered with it by events.

The protocol under which no reuse of a page can slip between a copy and its digest:

- backup: :meth:`SideStream.follow` the copy's stream once it has read the source (or before it
  does), digest the source on the side, and :meth:`SideStream.hold` the stream on which the engine
  records the operation as complete before it does. Whoever may next write the source waits for
  that record. Only then :meth:`SideStream.copy` the digests home: nobody waits for those.
- load: ``follow`` after (each part of) the engine's copy, digest the destination on the side,
  ``hold`` before the engine's record.

Recording completion on the side stream itself, after ``follow``, is the same order, and leaves the
copy's stream free for the next operation.
"""

import threading

import torch

from hicache_dbg.tracer.digest.driver import check, driver

__all__ = ["SideStream"]


class SideStream:
    """One stream on a device, and the two events that order it with others.

    ``handle`` is its raw handle, as the digesters take it; ``stream`` the same as torch's object.
    """

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self.stream = torch.cuda.Stream(device)
        self.handle: int = self.stream.cuda_stream
        self._following, self._holding = _event(self.stream), _event(self.stream)
        self._record = driver().cuEventRecord
        self._wait = driver().cuStreamWaitEvent
        self._copy = driver().cuMemcpyAsync
        # An event is recorded and waited for in one step: a wait takes the latest record.
        self._lock = threading.Lock()

    def follow(self, stream: int) -> None:
        """What is enqueued here from now on waits for all that is in ``stream`` (a raw handle)."""
        self._order(self._following.cuda_event, stream, self.handle)

    def hold(self, stream: int) -> None:
        """What is enqueued in ``stream`` from now on waits for all that is here."""
        self._order(self._holding.cuda_event, self.handle, stream)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue here a copy of ``source``'s bytes; both contiguous, on the device or pinned."""
        code = self._copy(target.data_ptr(), source.data_ptr(), source.nbytes, self.handle)
        if code:
            check("cuMemcpyAsync", code)

    def _order(self, event: int, earlier: int, later: int) -> None:
        with self._lock:
            code = self._record(event, earlier) or self._wait(later, event, 0)
        if code:
            check("ordering two streams", code)


def _event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(stream)  # torch makes the event when it is first recorded
    return event
