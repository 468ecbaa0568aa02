"""Notes on the order of work on a GPU: kernels that declare what they touch, and torch's events.

Work for a :class:`~hicache_dbg.pools.streams.CudaStream` that declares what it touches is an access
of that stream. The first such work starts listening to torch's GPU trace, which then stays on for
the life of the process and is inert when nobody listens.
"""

import threading
from collections.abc import Callable, Sequence

from hicache_dbg.pools.streams import CudaStream
from hicache_dbg.tracer.attach.call_site import access
from hicache_dbg.tracer.attach.gpu_trace import ignore, listen
from hicache_dbg.tracer.attach.hicache_books import Books
from hicache_dbg.tracer.attach.hicache_pages import Wrappers
from hicache_dbg.tracer.attach.hicache_streams import TableTouch, Touch, touched
from hicache_dbg.tracer.attach.notes import Notes
from hicache_dbg.tracer.checks.ordering_clocks import ActorId
from hicache_dbg.tracer.checks.ordering_cuda import CudaOrder
from hicache_dbg.tracer.checks.violation import Access, Violation

__all__ = ["CudaNotes"]


class CudaNotes:
    """Notes submissions to CUDA streams, and the events and waits reported by torch's GPU trace."""

    def __init__(self, notes: Notes, books: Callable[[], Books]) -> None:
        self._notes = notes
        self._books = books

    def wrappers(self) -> Wrappers:
        """Yield the methods to replace."""
        yield CudaStream, "submit", self._around_submit

    def close(self) -> None:
        """Stop listening."""
        ignore(self)

    def _around_submit(self, original: Callable[..., None]) -> Callable[..., None]:
        def submit(stream: CudaStream, work: Callable[[], object]) -> None:
            with self._notes.at("lifetimes/cuda"):  # torch's own trace may refuse to listen
                if touches := getattr(work, "touches", ()):
                    self._handed(stream, getattr(work, "name", "unnamed"), touches)
            original(stream, work)

        return submit

    def _handed(self, stream: CudaStream, name: str, touches: Sequence[Touch | TableTouch]) -> None:
        """Note that a kernel is about to be queued."""
        self._notes.ordered = True
        listen(self)
        handle, thread = int(stream.cuda.cuda_stream), _thread()
        by = Access(f"kernel {name}", f"stream {handle:#x}", access("").site)

        def turn(books: Books) -> list[Violation]:
            stream = books.order.cuda.handed(handle, thread)
            return touched(books.order, touches, stream, None, by)

        self._take(turn, by, touches)

    # -- torch's GPU trace ------------------------------------------------------------------------

    def event_recorded(self, event: int, stream: int) -> None:
        """``event`` was recorded on ``stream``."""
        thread = _thread()
        self._order(lambda order: order.event_recorded(event, stream, thread))

    def event_waited(self, event: int, stream: int) -> None:
        """``stream`` waits for ``event``."""
        self._order(lambda order: order.event_waited(event, stream))

    def event_synchronized(self, event: int) -> None:
        """This thread waited for ``event``."""
        thread = _thread()
        self._order(lambda order: order.event_synchronized(event, thread))

    def event_forgotten(self, event: int) -> None:
        """``event`` was created or destroyed."""
        self._order(lambda order: order.event_forgotten(event))

    def stream_synchronized(self, stream: int) -> None:
        """This thread waited for ``stream``."""
        thread = _thread()
        self._order(lambda order: order.stream_synchronized(stream, thread))

    def device_synchronized(self) -> None:
        """This thread waited for all streams."""
        thread = _thread()
        self._order(lambda order: order.device_synchronized(thread))

    def _order(self, tell: Callable[[CudaOrder], None]) -> None:
        def turn(books: Books) -> list[Violation]:
            tell(books.order.cuda)
            return []

        self._take(turn)

    def _take(
        self,
        turn: Callable[[Books], list[Violation]],
        by: Access | None = None,
        about: object = None,
    ) -> None:
        with self._notes.at("lifetimes/cuda"):
            self._notes.take(lambda: turn(self._books()), by=by, about=about)


def _thread() -> ActorId:
    return ActorId(threading.get_ident())
