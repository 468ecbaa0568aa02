"""Notes on what readers of the engine's loads are told: gates opened and passed, and the result."""

import threading
from collections.abc import Callable, Sequence
from functools import partial

from hicache_dbg.pools.ticket import GATE_TIMEOUT_S, Load, LoadTicket
from hicache_dbg.tracer.attach.call_site import access
from hicache_dbg.tracer.attach.hicache_books import Books
from hicache_dbg.tracer.attach.hicache_flight import Flight
from hicache_dbg.tracer.attach.hicache_pages import Wrappers
from hicache_dbg.tracer.attach.notes import Notes, Turn
from hicache_dbg.tracer.checks.ordering_clocks import ActorId
from hicache_dbg.tracer.checks.violation import Access, Violation

__all__ = ["ReaderNotes"]


class ReaderNotes:
    """Notes which layers readers were admitted to, and whether they were told the truth.

    ``flights`` finds an operation by the identity of its host page array, which its load shares.
    """

    def __init__(
        self, notes: Notes, books: Callable[[], Books], flights: dict[int, Flight]
    ) -> None:
        self._notes = notes
        self._books = books
        self._flights = flights

    def wrappers(self) -> Wrappers:
        """Yield the methods to replace."""
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
            with self._notes.at("lifetimes/finish"):
                by, actor = access(f"report of load {load.op_id}"), self._actor()
                turn = partial(_reported, self._books, load, actor, flight, by, good=error is None)
                self._note(flight, turn, by)
            original(load, error)

        return finish

    def _gate(self, load: Load, layer: int) -> None:
        flight = self._flights.get(id(load.host))
        on_time = flight is None or layer in flight.arrived
        if on_time and not self._notes.ordered:
            return
        with self._notes.at("lifetimes/gate"):
            actor, arrived = self._actor(), tuple(flight.arrived) if flight else ()
            by = access(f"gate {layer} of load {load.op_id}")
            turn = partial(_opened, self._books, load, layer, actor, flight, arrived, by)
            self._note(flight, turn, by)

    def _around_wait(self, original: Callable[..., None]) -> Callable[..., None]:
        def wait_layer(ticket: LoadTicket, layer: int, timeout: float = GATE_TIMEOUT_S) -> None:
            original(ticket, layer, timeout)
            if ticket.loads and self._notes.ordered:
                with self._notes.at("lifetimes/wait"):
                    by, actor = access(f"wait for layer {layer}"), _thread()
                    self._note(None, partial(_passed, self._books, ticket.loads, layer, actor), by)

        return wait_layer

    def _actor(self) -> ActorId | None:
        """Return the calling thread if the order of accesses is being checked, else None."""
        return _thread() if self._notes.ordered else None

    def _note(self, flight: Flight | None, turn: Turn, by: Access) -> None:
        pool = flight.pool if flight else ""
        self._notes.take(turn, pool, "load", by=by, about=flight)


# -- turns: on the bus's thread -------------------------------------------------------------------

_Books = Callable[[], Books]


def _opened(  # noqa: PLR0917 - a partial: who did what, and when
    books: _Books,
    load: Load,
    layer: int,
    actor: ActorId | None,
    flight: Flight | None,
    arrived: tuple[int, ...],
    by: Access,
) -> list[Violation]:
    if actor is not None:
        books().order.gate_opened(load, layer, actor)
    return [] if flight is None else books().gate(flight, layer, arrived, by)


def _passed(books: _Books, loads: Sequence[Load], layer: int, actor: ActorId) -> None:
    for load in loads:
        books().order.gate_passed(load, layer, actor)


def _reported(
    books: _Books,
    load: Load,
    actor: ActorId | None,
    flight: Flight | None,
    by: Access,
    *,
    good: bool,
) -> list[Violation]:
    if actor is not None:
        books().order.gate_opened(load, load._last, actor)  # noqa: SLF001
    return [] if flight is None else books().reported(flight, by, good=good)


def _thread() -> ActorId:
    return ActorId(threading.get_ident())
