"""Notes on the order of work: simulated streams, events between them, and tasks of workers.

A piece of work on a stream that declares what it ``touches`` (see :class:`Kernel`) is an access of
that stream, and so are the engine's own copies within a piece of work. Events are observed where
the host records them and waits for them.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.streams import Event, SimulatedEvent, SimulatedStream, SimulatedStreams
from hicache_dbg.pools.worker import Worker
from hicache_dbg.tracer.attach.call_site import access
from hicache_dbg.tracer.attach.hicache_books import Books
from hicache_dbg.tracer.attach.hicache_order import Order
from hicache_dbg.tracer.attach.hicache_pages import Wrappers
from hicache_dbg.tracer.attach.notes import Notes
from hicache_dbg.tracer.checks.ordering import Role
from hicache_dbg.tracer.checks.ordering_clocks import ActorId
from hicache_dbg.tracer.checks.violation import Access, Violation

__all__ = ["Kernel", "StreamNotes", "TableTouch", "Touch", "current_work", "touched"]

_work_numbers = count(1)
_running = threading.local()


@dataclass(frozen=True, slots=True, eq=False)
class Touch:
    """Layers and pages of a device pool that a kernel reads or writes."""

    pool: DevicePool
    layers: tuple[int, ...]
    pages: Sequence[int]
    writes: bool


@dataclass(frozen=True, slots=True)
class TableTouch:
    """Rows of a control table (page table, metadata) that are read or written.

    ``owner`` distinguishes tables of the same name: each cache of a process has its own page table.
    """

    table: str
    owner: object
    rows: Sequence[int]
    size: int
    writes: bool


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A piece of work for a stream that declares what it touches."""

    name: str
    work: Callable[[], object]
    touches: tuple[Touch | TableTouch, ...]

    def __call__(self) -> None:
        """Run the work."""
        self.work()


def current_work() -> int | None:
    """Return the number of the piece of stream work that this thread is running, if any."""
    number: int | None = getattr(_running, "work", None)
    return number


class StreamNotes:
    """Notes submissions, events and waits."""

    def __init__(self, notes: Notes, books: Callable[[], Books]) -> None:
        self._notes = notes
        self._books = books

    def wrappers(self) -> Wrappers:
        """Yield the methods to replace."""
        yield SimulatedStream, "submit", self._around_submit
        yield SimulatedStream, "record", self._around_record
        yield SimulatedStream, "wait_for", self._around_wait_for
        yield SimulatedEvent, "synchronize", self._around_synchronize
        yield SimulatedStreams, "synchronize", self._around_synchronize_all
        yield Worker, "submit", self._around_task

    def host_access(self, name: str, touches: Sequence[Touch | TableTouch]) -> None:
        """Note that the calling thread itself reads or writes, synchronously."""
        self._notes.ordered = True
        by, actor = access(name), ActorId(threading.get_ident())
        self._take(lambda books: touched(books.order, touches, actor, None, by), by, touches)

    def _around_submit(self, original: Callable[..., None]) -> Callable[..., None]:
        def submit(stream: SimulatedStream, work: Callable[[], object]) -> None:
            touches = getattr(work, "touches", ())
            self._notes.ordered |= bool(touches)
            if not self._notes.ordered:
                original(stream, work)
                return
            number, thread, actor = next(_work_numbers), threading.get_ident(), _of(stream)
            by = Access(
                f"kernel {getattr(work, 'name', 'unnamed')}",
                f"stream {stream.name}",
                access("").site,
            )

            def queued(books: Books) -> list[Violation]:
                books.order.stamps[number] = books.order.clocks.submit(ActorId(thread), actor)
                return []

            def begun(books: Books) -> list[Violation]:
                return touched(books.order, touches, actor, number, by)

            def done(books: Books) -> list[Violation]:
                books.order.stamps.pop(number, None)
                return []

            def run() -> None:
                before, _running.work = current_work(), number
                if touches:  # note it before the work uses them
                    self._take(begun, by, touches)
                try:
                    work()
                finally:
                    _running.work = before
                    self._take(done)

            self._take(queued)
            original(stream, run)

        return submit

    def _around_record(
        self, original: Callable[..., SimulatedEvent]
    ) -> Callable[..., SimulatedEvent]:
        def record(stream: SimulatedStream) -> SimulatedEvent:
            event = original(stream)
            self._take(lambda books: books.order.recorded(_of(stream), event))
            return event

        return record

    def _around_wait_for(self, original: Callable[..., None]) -> Callable[..., None]:
        def wait_for(stream: SimulatedStream, event: Event) -> None:
            self._take(lambda books: books.order.waited(_of(stream), event))
            original(stream, event)

        return wait_for

    def _around_synchronize(self, original: Callable[..., None]) -> Callable[..., None]:
        def synchronize(event: SimulatedEvent) -> None:
            original(event)
            thread = ActorId(threading.get_ident())
            self._take(lambda books: books.order.waited(thread, event))

        return synchronize

    def _around_synchronize_all(self, original: Callable[..., None]) -> Callable[..., None]:
        def synchronize(streams: SimulatedStreams) -> None:
            original(streams)
            thread = ActorId(threading.get_ident())
            actors = [_of(stream) for stream in streams._streams.values()]  # noqa: SLF001

            def turn(books: Books) -> list[Violation]:
                for actor in actors:
                    books.order.clocks.meet_actor(thread, actor)
                return []

            self._take(turn)

        return synchronize

    def _around_task(self, original: Callable[..., None]) -> Callable[..., None]:
        def submit(worker: Worker, task: Callable[[], None]) -> None:
            if not self._notes.ordered:
                original(worker, task)
                return
            carrier, thread = ("task", next(_work_numbers)), ActorId(threading.get_ident())
            ident = 0

            def begun(books: Books) -> list[Violation]:
                books.order.clocks.wait(ActorId(ident), carrier)
                books.order.clocks.forget(carrier)
                return []

            def run() -> None:
                nonlocal ident
                ident = threading.get_ident()
                self._take(begun)
                task()

            self._take(lambda books: books.order.clocks.record(thread, carrier))
            original(worker, run)

        return submit

    def _take(
        self,
        turn: Callable[[Books], list[Violation] | None],
        by: Access | None = None,
        about: object = None,
    ) -> None:
        if not self._notes.ordered:
            return
        with self._notes.at("lifetimes/order"):
            self._notes.take(lambda: turn(self._books()), by=by, about=about)


def touched(
    order: Order,
    touches: Sequence[Touch | TableTouch],
    actor: ActorId,
    work: int | None,
    by: Access,
) -> list[Violation]:
    """Record an access of ``actor``, at the moment of its queued ``work`` or at its next step."""
    if not touches:
        return []
    found, stamp = [], order.stamp(actor, work)
    for touch in touches:
        if isinstance(touch, TableTouch):
            role = Role.TABLE_WRITE if touch.writes else Role.TABLE_READ
            rows = np.asarray(touch.rows, np.int64)
            space = order.table(touch.owner, touch.table, touch.size)
            found += order.table_touched(space, rows, role, stamp, by)
            continue
        role = Role.COMPUTE_WRITE if touch.writes else Role.COMPUTE_READ
        pages = np.asarray(touch.pages, np.int64)
        found += order.touched(touch.pool, touch.layers, pages, role, stamp, by)
    return found


def _of(stream: SimulatedStream) -> ActorId:
    """Return a stream's actor id: negative, so that it differs from every thread's."""
    return ActorId(-id(stream))
