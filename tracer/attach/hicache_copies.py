"""Notes on the engine's operations: submitted, begun, delivered layer by layer, acknowledged, told."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.state import CacheState
from hicache_dbg.pools.transfer import CopyOp, TransferEngine
from hicache_dbg.tracer.attach.call_site import access
from hicache_dbg.tracer.attach.hicache_books import Books, Flight
from hicache_dbg.tracer.attach.hicache_pages import PageNotes, Wrappers
from hicache_dbg.tracer.attach.hicache_streams import current_work
from hicache_dbg.tracer.attach.notes import Notes
from hicache_dbg.tracer.checks.ordering import Role
from hicache_dbg.tracer.checks.ordering_clocks import ActorId
from hicache_dbg.tracer.checks.violation import Access, Violation

if TYPE_CHECKING:
    from hicache_dbg.pools.controller import HiCacheController

__all__ = ["CopyNotes"]


class CopyNotes:
    """What each operation promised, what it was seen to do, and what its readers were told."""

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
        #: By identity of the operation, and of the host pages that its load knows it by.
        self._flights = flights

    def wrappers(self) -> Wrappers:
        """What to replace."""
        yield CacheState, "begin", self._around_begin
        yield CacheState, "end", self._around_end
        yield TransferEngine, "backup", self._around_backup
        yield TransferEngine, "load", self._around_load

    # -- submission and acknowledgement ---------------------------------------------------------

    def _around_begin(self, original: Callable[..., CopyOp]) -> Callable[..., CopyOp]:
        def begin(
            state: CacheState, kind: Literal["backup", "load"], host: Ids, device: Ids
        ) -> CopyOp:
            op = original(state, kind, host, device)
            with self._notes.errors.at("lifetimes/begin"):
                flight = Flight(
                    op=op,
                    state=state,
                    host=host.copy(),
                    device=device.copy(),
                    host_generations=op.host_generations.astype(np.int64),
                    device_generations=state.device.generation(device).astype(np.int64),
                    by=access(f"{kind} {op.op_id}"),
                )
                pool = "+".join(flight.names)
                self._pages.name(state.host, pool)
                self._pages.name(state.device, pool)
                self._flights[id(op)] = self._flights[id(host)] = flight

                def turn(books: Books) -> list[Violation]:
                    books.place(state)
                    return books.submitted(flight)

                self._note(flight, turn)
            return op

        return begin

    def _around_end(self, original: Callable[..., None]) -> Callable[..., None]:
        def end(state: CacheState, host: Ids, device: Ids) -> None:
            flight = self._flights.get(id(host))
            if flight is not None:
                with self._notes.errors.at("lifetimes/end"):
                    by = access(f"end of {flight.what}")
                    good = flight.op.status == "done"
                    self._flights.pop(id(flight.op), None)
                    if not flight.loads:
                        self._flights.pop(id(host), None)

                    def turn(books: Books) -> list[Violation]:
                        found = books.acknowledged(flight, by)
                        return (
                            found if flight.loads else found + books.reported(flight, by, good=good)
                        )

                    self._note(flight, turn)
            original(state, host, device)

        return end

    # -- the copy itself ------------------------------------------------------------------------

    def _around_backup(self, original: Callable[..., None]) -> Callable[..., None]:
        def backup(engine: TransferEngine, op: CopyOp) -> None:
            flight = self._flights.get(id(op))
            if flight is None:
                original(engine, op)
                return
            if (
                op.after is not None
            ):  # the engine waits for it as well; the wait orders what follows
                op.after.synchronize()
            self._begun(flight)
            try:
                original(engine, op)
            except BaseException as error:
                self._over(flight, f"failed: {error}")
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
                self._over(flight, f"failed: {error}")
                raise
            self._over(flight, op.status)

        return load

    def _begun(self, flight: Flight) -> None:
        with self._notes.errors.at("lifetimes/begun"):
            by, actor, work = access(flight.what), _actor(), current_work()
            flight.carrier = by
            parts = [
                (
                    copy.mirror,
                    copy.layers,
                    copy.host.page_ids(copy.mirror.host.geometry.slots_per_page),
                    copy.device.page_ids(copy.mirror.device.geometry.slots_per_page),
                )
                for copy in flight.op.copies
            ]

            def turn(books: Books) -> list[Violation]:
                found = books.looked_at(flight, by)
                found += books.carried(flight, [mirror.name for mirror, *_ in parts], by)
                stamp = books.stamp(actor, work)
                for mirror, _, host, device in parts:
                    given = device if flight.loads else host
                    books.completion.deliver(flight.key, mirror.name, given.tolist())
                    found += books.anchored(flight, mirror.name, (host, device), by)
                found += books.begun(flight, by)
                for mirror, layers, host, device in parts:
                    if not books.follow(mirror):
                        continue
                    if flight.loads:
                        found += books.touched(
                            mirror.host,
                            "host",
                            layers,
                            host,
                            role=Role.LOAD_READ,
                            stamp=stamp,
                            by=by,
                        )
                        continue
                    for pool, tier, pages, role in (
                        (mirror.device, "device", device, Role.BACKUP_READ),
                        (mirror.host, "host", host, Role.BACKUP_WRITE),
                    ):
                        found += books.touched(
                            pool, tier, layers, pages, role=role, stamp=stamp, by=by
                        )
                return found

            self._note(flight, turn)

    def _layer_arrived(self, flight: Flight, layer: int) -> None:
        flight.arrived.append(layer)
        if not self._notes.ordered:
            return
        with self._notes.errors.at("lifetimes/layer"):
            actor, work = _actor(), current_work()
            self._note(flight, lambda books: _arrived(books, flight, layer, actor, work))

    def _over(self, flight: Flight, status: str) -> None:
        with self._notes.errors.at("lifetimes/over"):
            by = access(f"return of {flight.what}")
            names = [copy.mirror.name for copy in flight.op.copies]
            layers = tuple(flight.arrived)

            def turn(books: Books) -> list[Violation]:
                books.ended(flight, layers, status, by)
                if status != "done":
                    return []
                books.arrived(flight, names)
                return books.looked_at(flight, by)

            self._note(flight, turn)

    # -- the end --------------------------------------------------------------------------------

    def around_close(self, original: Callable[..., None]) -> Callable[..., None]:
        """When a controller has closed nothing is under way, and pages are cached or free."""

        def close(controller: "HiCacheController", *args: Any) -> None:
            try:
                original(controller, *args)
            finally:
                with self._notes.errors.at("lifetimes/close"):
                    self._closed(controller, access("close"))

        return close

    def _closed(self, controller: "HiCacheController", by: Access) -> None:
        host, device = (controller.allocators[tier] for tier in ("host", "device"))
        cached = controller.tree.stats.host_pages
        names = "+".join(controller.group.host)

        def turn() -> list[Violation]:
            books = self._books()
            found = books.tier(host).idle(by) + books.tier(device).idle(by)
            return found + books.tier(host).used(cached, by)

        self._notes.take(turn, names)

    def _note(self, flight: Flight | None, turn: Callable[[Books], list[Violation]]) -> None:
        self._notes.take(
            lambda: turn(self._books()),
            "+".join(flight.names) if flight else "",
            flight.op.kind if flight else "",
        )


def _arrived(
    books: Books, flight: Flight, layer: int, actor: ActorId, work: int | None
) -> list[Violation]:
    """The bytes of a layer are there: they were written just before."""
    followed = [copy for copy in flight.op.copies if books.follow(copy.mirror)]
    if not followed:
        return []
    found, stamp = [], books.stamp(actor, work)
    carrier = flight.carrier or flight.by
    by = Access(f"{flight.what}, layer {layer}", carrier.actor, carrier.site)
    for copy in followed:
        geometry = copy.mirror.device.geometry
        own = tuple(at for at in copy.layers if geometry.layer_ids[at] == layer)
        pages = copy.device.page_ids(geometry.slots_per_page)
        found += books.touched(
            copy.mirror.device, "device", own, pages, role=Role.LOAD_WRITE, stamp=stamp, by=by
        )
    return found


def _actor() -> ActorId:
    return ActorId(threading.get_ident())
