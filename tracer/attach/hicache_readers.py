"""Notes on what readers are told of the engine's loads: gates opened, passed, and the last word."""

import threading
from collections.abc import Callable

from hicache_dbg.pools.ticket import GATE_TIMEOUT_S, Load, LoadTicket
from hicache_dbg.tracer.attach.call_site import access
from hicache_dbg.tracer.attach.hicache_books import Books
from hicache_dbg.tracer.attach.hicache_flight import Flight
from hicache_dbg.tracer.attach.hicache_pages import Wrappers
from hicache_dbg.tracer.attach.notes import Notes
from hicache_dbg.tracer.checks.ordering_clocks import ActorId
from hicache_dbg.tracer.checks.violation import Access, Violation

__all__ = ["ReaderNotes"]


class ReaderNotes:
    """Which layers readers were let to, and whether they were told the truth.

    ``flights`` finds an operation by the identity of its host pages, which its load has too.
    """

    def __init__(
        self, notes: Notes, books: Callable[[], Books], flights: dict[int, Flight]
    ) -> None:
        self._notes = notes
        self._books = books
        self._flights = flights

    def wrappers(self) -> Wrappers:
        """What to replace."""
        yield Load, "open", self._around_open
        yield Load, "finish", self._around_finish
        yield LoadTicket, "wait_layer", self._around_wait

    def _around_open(self, original: Callable[..., None]) -> Callable[..., None]:
        def open_gate(load: Load, layer: int) -> None:
            self._gate(load, layer)
            original(load, layer)

        return open_gate

    def _around_finish(self, original: Callable[..., None]) -> Callable[..., None]:
        def finish(load: Load, error: BaseException | None = None) -> None:
            flight = self._flights.pop(id(load.host), None)
            with self._notes.errors.at("lifetimes/finish"):
                by, actor, last = access(f"report of load {load.op_id}"), _actor(), load._last  # noqa: SLF001

                def turn(books: Books) -> list[Violation]:
                    books.order.gate_opened(load, last, actor)
                    if flight is None:
                        return []
                    return books.reported(flight, by, good=error is None)

                self._note(flight, turn, by)
            original(load, error)

        return finish

    def _gate(self, load: Load, layer: int) -> None:
        flight = self._flights.get(id(load.host))
        on_time = flight is None or layer in flight.arrived
        if on_time and not self._notes.ordered:
            return
        with self._notes.errors.at("lifetimes/gate"):
            actor, arrived = _actor(), tuple(flight.arrived) if flight else ()
            by = access(f"gate {layer} of load {load.op_id}")

            def turn(books: Books) -> list[Violation]:
                books.order.gate_opened(load, layer, actor)
                return [] if flight is None else books.gate(flight, layer, arrived, by)

            self._note(flight, turn, by)

    def _around_wait(self, original: Callable[..., None]) -> Callable[..., None]:
        def wait_layer(ticket: LoadTicket, layer: int, timeout: float = GATE_TIMEOUT_S) -> None:
            original(ticket, layer, timeout)
            if ticket.loads and self._notes.ordered:
                with self._notes.errors.at("lifetimes/wait"):
                    actor, loads, by = _actor(), ticket.loads, access(f"wait for layer {layer}")

                    def turn(books: Books) -> list[Violation]:
                        for load in loads:
                            books.order.gate_passed(load, layer, actor)
                        return []

                    self._note(None, turn, by)

        return wait_layer

    def _note(
        self, flight: Flight | None, turn: Callable[[Books], list[Violation]], by: Access
    ) -> None:
        pool = flight.pool if flight else ""
        self._notes.take(lambda: turn(self._books()), pool, "load", by=by, about=flight)


def _actor() -> ActorId:
    return ActorId(threading.get_ident())
