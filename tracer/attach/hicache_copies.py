"""Notes on the engine's operations: submitted, begun, arrived by layer, acknowledged, reported."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import numpy as np

from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.state import CacheState
from hicache_dbg.pools.transfer import CopyOp, PoolCopy, TransferEngine
from hicache_dbg.tracer.attach.call_site import access
from hicache_dbg.tracer.attach.hicache_books import Books, moments
from hicache_dbg.tracer.attach.hicache_flight import Flight, Part
from hicache_dbg.tracer.attach.hicache_pages import PageNotes, Wrappers
from hicache_dbg.tracer.attach.hicache_streams import current_work
from hicache_dbg.tracer.attach.notes import Notes, Turn
from hicache_dbg.tracer.checks.ordering_clocks import ActorId
from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.words import failure

if TYPE_CHECKING:
    from hicache_dbg.pools.controller import HiCacheController

__all__ = ["CopyNotes"]


class CopyNotes:
    """Notes what each operation promised, what it did, and what its readers were told."""

    def __init__(
        self,
        notes: Notes,
        books: Callable[[], Books],
        pages: PageNotes,
        flights: dict[int, Flight],
    ) -> None:
        self._notes = notes
        self._books = books
        self._pages = pages
        #: By identity of the operation, and of its array of host pages, which its Load shares.
        self._flights = flights
        #: The pools of each cache, joined by "+" as in findings.
        self._pools: WeakKeyDictionary[CacheState, str] = WeakKeyDictionary()

    def wrappers(self) -> Wrappers:
        """Yield the methods to replace."""
        yield CacheState, "begin", self._around_begin
        yield CacheState, "end", self._around_end
        yield TransferEngine, "backup", self._around_backup
        yield TransferEngine, "load", self._around_load

    # -- submission and acknowledgement ---------------------------------------------------------

    def _around_begin(self, original: Callable[..., CopyOp]) -> Callable[..., CopyOp]:
        def begin(
            state: CacheState, kind: Literal["backup", "load"], host: Ids, device: Ids
        ) -> CopyOp:
            with self._pages.holding() as together:
                op = original(state, kind, host, device)
                with self._notes.at("lifetimes/begin"):
                    flight = _flight(state, op, self._pool(state), host, device)
                    actor, holds = self._actor(), together.claim(state.host, state.device)
                    turn = partial(_submitted, self._books, flight, actor, holds=holds)
                    self._note(flight, turn, flight.by)
                    # Last, so that an operation whose note failed is not followed to its end.
                    self._flights[id(op)] = self._flights[id(host)] = flight
            return op

        return begin

    def _around_end(self, original: Callable[..., None]) -> Callable[..., None]:
        def end(state: CacheState, host: Ids, device: Ids) -> None:
            flight = self._flights.get(id(host))
            with self._pages.holding() as together:
                try:
                    original(state, host, device)
                finally:
                    if flight is not None:
                        with self._notes.at("lifetimes/end"):
                            holds = together.claim(state.host, state.device)
                            self._ended(flight, host, holds=holds)

        return end

    def _ended(self, flight: Flight, host: Ids, *, holds: bool) -> None:
        by, actor = access(f"end of {flight.what}"), self._actor()
        good = None if flight.loads else flight.op.status == "done"
        self._flights.pop(id(flight.op), None)
        if not flight.loads:
            self._flights.pop(id(host), None)
        turn = partial(_acknowledged, self._books, flight, actor, by, holds=holds, good=good)
        self._note(flight, turn, by)

    def _pool(self, state: CacheState) -> str:
        """Return the joined pool names of a cache, and name its allocators in findings by them."""
        pool = self._pools.get(state)
        if pool is None:
            pool = self._pools[state] = "+".join(mirror.name for mirror in state.group.mirrors)
            self._pages.name(state.host, pool)
            self._pages.name(state.device, pool)
        return pool

    def _actor(self) -> ActorId | None:
        """Return the calling thread if the order of accesses is being checked, else None."""
        return _actor() if self._notes.ordered else None

    # -- the copy itself ------------------------------------------------------------------------

    def _around_backup(self, original: Callable[..., None]) -> Callable[..., None]:
        def backup(engine: TransferEngine, op: CopyOp) -> None:
            flight = self._flights.get(id(op))
            if flight is None:
                original(engine, op)
                return
            if op.after is not None:  # the engine would wait anyway; waiting here orders our notes
                op.after.synchronize()
            self._begun(flight)
            try:
                original(engine, op)
            except BaseException as error:
                self._over(flight, f"failed: {failure(error)}")
                raise
            self._over(flight, op.status)

        return backup

    def _around_load(self, original: Callable[..., None]) -> Callable[..., None]:
        def load(engine: TransferEngine, op: CopyOp, on_layer_done: Callable[[int], None]) -> None:
            flight = self._flights.get(id(op))
            if flight is None:
                original(engine, op, on_layer_done)
                return
            if op.after is not None:
                op.after.synchronize()
            self._begun(flight)

            def layer_done(layer: int) -> None:
                self._layer_arrived(flight, layer)
                on_layer_done(layer)

            try:
                original(engine, op, layer_done)
            except BaseException as error:
                self._over(flight, f"failed: {failure(error)}")
                raise
            self._over(flight, op.status)

        return load

    def _begun(self, flight: Flight) -> None:
        with self._notes.at("lifetimes/begun"):
            by, actor, work = access(flight.what), _actor(), current_work()
            flight.carrier = by
            parts = [_part(copy) for copy in flight.op.copies]
            self._note(flight, partial(_begun, self._books, flight, parts, by, actor, work), by)

    def _layer_arrived(self, flight: Flight, layer: int) -> None:
        flight.arrived.append(layer)
        if not self._notes.ordered:
            return
        unsaid = self._notes.here.turns
        landing = unsaid[-1] if unsaid else None
        if isinstance(landing, _Landing) and landing.flight is flight:
            landing.layers.append(layer)
        else:
            unsaid.append(_Landing(self._books, flight, [layer], _actor(), current_work()))

    def _over(self, flight: Flight, status: str) -> None:
        with self._notes.at("lifetimes/over"):
            by, layers = access(f"return of {flight.what}"), tuple(flight.arrived)
            moment, actor = next(moments), self._actor()
            turn = partial(_over, self._books, flight, layers, status, by, moment, actor)
            self._notes.here.turns.append(turn)  # its end is noted next

    # -- the end --------------------------------------------------------------------------------

    def around_close(self, original: Callable[..., None]) -> Callable[..., None]:
        """Check a closed controller: nothing in flight, every page cached or free."""

        def close(controller: "HiCacheController", *args: Any) -> None:
            try:
                original(controller, *args)
            finally:
                with self._notes.at("lifetimes/close"):
                    self._closed(controller, access("close"))

        return close

    def _closed(self, controller: "HiCacheController", by: Access) -> None:
        if controller.storage is not None and controller.storage.stuck:
            return  # a hanging store holds its pages until it returns; that has its own finding
        host, device = (controller.allocators[tier] for tier in ("host", "device"))
        cached = controller.tree.stats.host_pages
        names = "+".join(controller.group.host)
        state = controller._state  # noqa: SLF001

        def turn() -> list[Violation]:
            books = self._books()
            tier = books.tier(host)
            found = books.closed(state, by)
            found += tier.pages.idle(by) + books.tier(device).pages.idle(by)
            found += tier.use.closed(by)
            return found + tier.pages.used(cached, by)

        self._notes.take(turn, names, by=by)

    def _note(self, flight: Flight, turn: Turn, by: Access) -> None:
        self._notes.take(turn, flight.pool, flight.op.kind, by=by, about=flight)


# -- turns: on the bus's thread -------------------------------------------------------------------

_Books = Callable[[], Books]


def _submitted(
    books: _Books, flight: Flight, actor: ActorId | None, *, holds: bool
) -> list[Violation]:
    if holds:
        books().order.met(actor, flight.state.host, flight.state.device)
    return books().submitted(flight, holds=holds)


def _begun(  # noqa: PLR0917 - a partial: who did what, and when
    books: _Books,
    flight: Flight,
    parts: list[Part],
    by: Access,
    actor: ActorId,
    work: int | None,
) -> list[Violation]:
    flight.parts = parts
    return books().begun(flight, by) + books().order.begun(flight, by, actor, work)


@dataclass(frozen=True, slots=True, eq=False)
class _Landing:
    """Layers that arrived since the copying thread's last note."""

    books: _Books
    flight: Flight
    layers: list[int]
    actor: ActorId
    work: int | None

    def __call__(self) -> list[Violation]:
        return self.books().order.landed(self.flight, self.layers, self.actor, self.work)


def _over(  # noqa: PLR0917 - as above
    books: _Books,
    flight: Flight,
    layers: tuple[int, ...],
    status: str,
    by: Access,
    moment: int,
    actor: ActorId | None,
) -> list[Violation]:
    if actor is not None:
        books().order.over(flight, actor)
    books().ended(flight, layers, status, by)
    if status != "done":
        return []
    books().arrived(flight, moment)
    return books().looked_at(flight, by)


def _acknowledged(
    books: _Books,
    flight: Flight,
    actor: ActorId | None,
    by: Access,
    *,
    holds: bool,
    good: bool | None,
) -> list[Violation]:
    """Close an operation.

    ``good`` is the result its readers get with this, None if they get it apart.
    """
    if holds:
        books().order.met(actor, flight.state.host, flight.state.device)
    found = books().acknowledged(flight, by, holds=holds)
    return found if good is None else found + books().reported(flight, by, good=good)


def _actor() -> ActorId:
    return ActorId(threading.get_ident())


def _flight(state: CacheState, op: CopyOp, pool: str, host: Ids, device: Ids) -> Flight:
    return Flight(
        op=op,
        state=state,
        pool=pool,
        host=host.copy(),
        device=device.copy(),
        host_generations=op.host_generations.astype(np.int64),
        device_generations=state.device.generation(device).astype(np.int64),
        by=access(f"{op.kind} {op.op_id}"),
    )


def _part(copy: PoolCopy) -> Part:
    mirror = copy.mirror
    return Part(
        mirror,
        copy.io_backend,
        copy.layers,
        copy.host.page_ids(mirror.host.geometry.slots_per_page),
        copy.device.page_ids(mirror.device.geometry.slots_per_page),
    )
