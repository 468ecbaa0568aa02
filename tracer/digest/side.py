"""A stream of our own, ordered with the engine's streams by events.

No page can be reused between its copy and its digest if callers keep this order:

- backup: :meth:`SideStream.follow` the copy's stream before or after it reads the source, digest the
  source here, and :meth:`SideStream.hold` the stream on which the engine records completion before
  it does so. Whoever writes the source next waits for that record. :meth:`SideStream.copy` the
  digests to the host last: nobody waits for those.
- load: ``follow`` the engine's copy (or each part of it), digest the destination here, and ``hold``
  before the engine records completion.

Recording completion on this stream, after ``follow``, gives the same order and leaves the copy's
stream free for the next operation.
"""

import threading

import torch

from hicache_dbg.tracer.digest.driver import check, driver

__all__ = ["SideStream"]


class SideStream:
    """A stream on a device and the two events that order it with others.

    ``stream`` is torch's object, ``handle`` its raw handle, which the digesters take.
    """

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self.stream = torch.cuda.Stream(device)
        self.handle: int = self.stream.cuda_stream
        self._following, self._holding = _event(self.stream), _event(self.stream)
        self._record = driver().cuEventRecord
        self._wait = driver().cuStreamWaitEvent
        self._copy = driver().cuMemcpyAsync
        # Recording an event and waiting for it must be one step: a wait takes the latest record.
        self._lock = threading.Lock()

    def follow(self, stream: int) -> None:
        """Make later work here wait for everything enqueued on ``stream`` (a raw handle)."""
        self._order(self._following.cuda_event, stream, self.handle)

    def hold(self, stream: int) -> None:
        """Make later work on ``stream`` (a raw handle) wait for everything enqueued here."""
        self._order(self._holding.cuda_event, self.handle, stream)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy of ``source``'s bytes; both tensors are contiguous, on the device or pinned."""
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
