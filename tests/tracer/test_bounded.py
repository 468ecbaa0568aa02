"""The tracer's memory does not grow with what it has seen; benchmarks/bounded.py uses a million records."""

import gc
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.repro.soak import CASES, soak
from hicache_dbg.tracer.attach.hicache import HiCacheAttachment
from hicache_dbg.tracer.bench.reach import Reach, reach
from hicache_dbg.tracer.bench.sglang_ops import SglangOps
from hicache_dbg.tracer.checks.kept import Kept
from hicache_dbg.tracer.checks.ordering_clocks import ActorId, Clocks
from hicache_dbg.tracer.events import Copied, Event
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Gate, Settings
from hicache_dbg.tracer.sink import SinkError


class Counting:
    """A sink that keeps nothing."""

    name = "counting"

    def __init__(self) -> None:
        self.copies = 0

    def emit(self, events: Sequence[Event]) -> None:
        """Count the copies."""
        self.copies += sum(isinstance(event, Copied) for event in events)

    def close(self) -> None:
        """Nothing to release."""


class Dead(Counting):
    """A sink that takes nothing."""

    name = "dead"

    def emit(self, events: Sequence[Event]) -> None:
        """Refuse."""
        raise SinkError("dead", reason="dead", lost=len(events))


class Held:
    """A record that is not ready until released, so that the ring fills behind it."""

    def __init__(self) -> None:
        self.going = False

    def ready(self) -> bool:
        """Return whether it was released."""
        return self.going

    def events(self) -> Sequence[Event]:
        """Return nothing."""
        return ()


def kept(ops: SglangOps) -> Reach:
    """Return what session and attachment retain, apart from short-lived objects.

    These are thousands of shared accesses in the books, and as many device slots as operations were
    under way at once.
    """
    gc.collect()
    shared = [one for one in gc.get_objects() if type(one) is Kept]
    return reach(ops.session, ops.observer, beyond=[*shared, ops.device.lane.slots])


def judged(ops: SglangOps, cycles: int) -> None:
    """Judge so many generations of pages, of four records each, with no more in the ring than it holds."""
    for number in range(cycles):
        ops.live(number)
        if number % 1000 == 999:
            assert ops.session.bus.settle(30)
    assert ops.session.bus.settle(30)


def test_twenty_thousand_records_leave_nothing_behind() -> None:
    """Half of them take as much memory as all: ledger, books, history, ring and outboxes are bounded."""
    sink = Counting()
    ops = SglangOps([sink], layers=2, pages=2)
    judged(ops, 2500)
    assert ops.session.bus.flush()
    half = kept(ops)
    judged(ops, 2500)
    assert ops.session.bus.flush()
    whole = kept(ops)
    ops.session.close()
    assert sink.copies == 2 * 5000
    assert whole.objects - half.objects < 50, whole.kinds - half.kinds


@pytest.mark.parametrize("act", [SglangOps.live, SglangOps.submit])
def test_a_full_ring_keeps_no_more_than_it_holds(act: Callable[[SglangOps, int], None]) -> None:
    """Operations without room are released with their slots and indices, however many there are."""
    ops, held = SglangOps([Counting()], layers=2, pages=2, queue=64), Held()
    ops.session.push(held)
    seen: list[int] = []
    for number in range(1500):
        act(ops, number)
        if number % 500 == 499:
            seen.append(kept(ops).objects)
    held.going = True
    assert ops.session.bus.flush()
    dropped = ops.session.bus.health().dropped
    ops.session.close()
    assert dropped["bus/queue_full"] > 1000
    assert max(seen) - min(seen) < 50


def test_a_session_that_closes_early_leaves_no_operation_open() -> None:
    """Pages' generations are kept for operations that wait to be judged, and for no others."""
    ops = SglangOps([Counting()], layers=2, pages=2)
    ops.session.push(Held())
    for number in range(5):
        ops.submit(number)
    history = ops.observer.devices.history
    assert len(history._open) == 5
    ops.session.close(0.1)
    ops.session.bus._thread.join(30)
    assert not history._open


def test_a_dead_sink_holds_as_much_as_its_outbox() -> None:
    """The queue of a sink that accepts nothing is bounded, and what does not fit is counted."""
    ops = SglangOps([Dead()], layers=2, pages=2, queue=256)
    (outbox,) = ops.session.bus._outboxes
    for number in range(2000):
        ops.submit(number)
        if number % 50 == 49:
            assert ops.session.bus.settle(30)
            assert outbox.depth <= 256
    lost = outbox.losses()
    ops.session.close(0)
    assert lost["queue_full"] > 500


def test_the_host_is_let_in_between_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bus thread sleeps briefly once it has held the interpreter long enough, not after each operation."""
    slept: list[float] = []
    whole = time.sleep

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        whole(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    sink = MemorySink()
    ops, held = SglangOps([sink], layers=61, pages=4), Held()
    ops.session.push(held)
    for number in range(256):
        ops.submit(number)
    held.going = True
    assert ops.session.bus.flush()
    ops.session.close()
    assert len(sink.of(Copied)) == 256
    assert 4 < slept.count(0) < 256


def test_events_of_streams_leave_nothing_behind() -> None:
    """What an event stands for is dropped with it: one comes with every copy."""
    with Runtime.start(Settings(gate=Gate.ON), sinks=[Counting()]) as runtime:
        assert isinstance(runtime.attachment, HiCacheAttachment)
        soak(CASES[0], turns=60)
        assert runtime.flush(60)
        gc.collect()
        books = runtime.attachment.lifetimes._books
        assert len(books.order.clocks._carried) == 0


def test_an_event_orders_as_long_as_it_lives() -> None:
    """And one that gets the address of a dead one orders nothing yet."""

    class Event:
        """An event of any system."""

    clocks, event = Clocks(), Event()
    clocks.step(ActorId(1))
    clocks.record(ActorId(1), clocks.carrier(event))
    clocks.wait(ActorId(2), clocks.carrier(event))
    assert clocks.now(ActorId(2)).clock == {ActorId(1): 1}
    del event
    assert not clocks._carried


def test_threads_that_come_and_go_leave_a_few_ids_behind() -> None:
    """The system gives the id of a dead thread to a later one, which goes on with its clock."""
    with Runtime.start(Settings(gate=Gate.ON), sinks=[Counting()]) as runtime:
        assert isinstance(runtime.attachment, HiCacheAttachment)
        notes = runtime.attachment.lifetimes
        pages, together = PageAllocator(8, "host"), 8
        notes.host_access("first", ())  # from here on, who does what is of interest

        def use() -> None:
            pages.free(pages.alloc(1))
            all_here.wait(30)

        for _ in range(50):
            all_here = threading.Barrier(together)
            threads = [threading.Thread(target=use) for _ in range(together)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
        assert runtime.flush(60)
        assert 0 < len(notes._books.order.clocks._now) <= 3 * together
