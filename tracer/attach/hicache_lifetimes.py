"""Attach the checks of ownership, components, completion, identity and order to our own engine.

On the host's threads a call only leaves a note of what was done, by whom and in which order; the
state machines run on the bus's thread.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hicache_dbg.pools.state import CacheState
from hicache_dbg.tracer.attach.hicache_books import Books
from hicache_dbg.tracer.attach.hicache_copies import CopyNotes
from hicache_dbg.tracer.attach.hicache_cuda import CudaNotes
from hicache_dbg.tracer.attach.hicache_keys import KeyNotes
from hicache_dbg.tracer.attach.hicache_pages import PageNotes
from hicache_dbg.tracer.attach.hicache_readers import ReaderNotes
from hicache_dbg.tracer.attach.hicache_streams import StreamNotes, TableTouch, Touch
from hicache_dbg.tracer.attach.notes import Desk, Notes
from hicache_dbg.tracer.attach.patch import Patches
from hicache_dbg.tracer.checks.ownership import Pages

if TYPE_CHECKING:
    from hicache_dbg.tracer.attach.hicache_flight import Flight

__all__ = ["LifetimeAttachment"]


class LifetimeAttachment:
    """Wraps the calls that allocate and free pages, start and end copies, and admit readers.

    ``attach`` and ``detach`` are a symmetric, idempotent pair; after ``detach`` the engine's
    functions are the very same objects as before.
    """

    def __init__(self, desk: Desk) -> None:
        self._books = Books()
        notes = Notes(desk, self.start_over)
        self._notes = notes
        self._patches = Patches()
        self._pages = PageNotes(notes, lambda: self._books)
        self._flights: dict[int, Flight] = {}
        self._copies = CopyNotes(notes, lambda: self._books, self._pages, self._flights)
        self._readers = ReaderNotes(notes, lambda: self._books, self._flights)
        self._keys = KeyNotes(notes, lambda: self._books)
        self._streams = StreamNotes(notes, lambda: self._books)
        self._cuda = CudaNotes(notes, lambda: self._books)

    def attach(self) -> None:
        """Wrap what is not wrapped yet."""
        for part in (self._pages, self._copies, self._readers, self._streams, self._cuda):
            for owner, name, make in part.wrappers():
                self._patches.replace(owner, name, self._notes.closely(make))

    def attach_controller(self, controller: type) -> None:
        """Wrap the controller's own methods.

        Separate, because its module may still be importing.
        """
        for name, make in (
            ("close", self._copies.around_close),
            ("match", self._keys.around_match),
            ("insert", self._keys.around_insert),
            ("load_back", self._keys.around_load_back),
        ):
            self._patches.replace(controller, name, self._notes.closely(make))

    def detach(self) -> None:
        """Restore the engine's own functions."""
        self._cuda.close()
        self._patches.undo()
        self._flights.clear()

    def host_access(self, name: str, touches: Sequence[Touch | TableTouch]) -> None:
        """Note that the calling thread itself reads or writes pages or a table, synchronously."""
        self._streams.host_access(name, touches)

    def filled(self, state: CacheState, pages: Pages, generations: Pages) -> None:
        """Note that host pages were filled from storage, in every pool of the group."""
        self._notes.take(lambda: self._books.filled(state, pages, generations))

    def start_over(self) -> None:
        """Forget everything, as if tracing started now."""
        self._books = Books()
