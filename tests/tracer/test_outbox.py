"""One sink's queue: a sink with a pace leaves the interpreter to others, unless somebody waits."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.exporters.samples import copied
from tests.tracer.bus_parts import Blocked, finding
from tests.tracer.bus_parts import copied as numbered

from hicache_dbg.tracer.events import Copied, Event, Finding, Health
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.outbox import BATCH, Outbox
from hicache_dbg.tracer.sink import Pace, SinkError

LONG_S = 3600.0
WAIT_S = 20.0


class Batches:
    """A sink that keeps the size of each batch."""

    name = "batches"

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.sizes: list[int] = []
        self.emitted = threading.Semaphore(0)

    def emit(self, events: Sequence[Event]) -> None:
        """Keep how many there were."""
        self.sizes.append(len(events))
        self.emitted.release()

    def close(self) -> None:
        """Nothing to release."""


Make = Callable[[Pace], tuple[Batches, Outbox]]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make a sink and its outbox; closed after the test."""
    made: list[Outbox] = []

    def begin(pace: Pace) -> tuple[Batches, Outbox]:
        sink = Batches(pace)
        made.append(Outbox(sink, capacity=4 * BATCH))
        return sink, made[-1]

    yield begin
    for outbox in made:
        outbox.close(WAIT_S)


def test_a_first_event_waits_for_more_to_go_with_it(make: Make) -> None:
    """Events that come one by one are one batch, which a drain does not keep waiting."""
    sink, outbox = make(Pace(gather_s=LONG_S))
    outbox.put([copied()])
    assert not sink.emitted.acquire(timeout=0.02)
    for _ in range(2):
        outbox.put([copied()])
    assert outbox.drain(WAIT_S)
    assert sink.sizes == [3]


def test_a_whole_batch_does_not_wait(make: Make) -> None:
    """With enough events there is nothing to gather."""
    sink, outbox = make(Pace(gather_s=LONG_S))
    outbox.put([copied()])
    outbox.put([copied()] * (BATCH - 1))
    assert sink.emitted.acquire(timeout=WAIT_S)
    assert sink.sizes == [BATCH]


@pytest.mark.parametrize("pace", [Pace(rest=1e12), Pace(gather_s=LONG_S), Pace(1e12, LONG_S)])
def test_closing_is_not_slowed(make: Make, pace: Pace) -> None:
    """A sink that rests or gathers still delivers everything when it is closed."""
    sink, outbox = make(pace)
    outbox.put([copied()] * (2 * BATCH + 1))
    outbox.close(WAIT_S)
    assert sum(sink.sizes) == 2 * BATCH + 1
    assert outbox.losses() == {}


def test_a_sink_that_computed_rests(make: Make) -> None:
    """After a batch its thread pauses, and the next batch goes as soon as somebody waits for it."""
    sink, outbox = make(Pace(rest=1e12))
    outbox.put([copied()])
    assert sink.emitted.acquire(timeout=WAIT_S)
    outbox.put([copied()])
    assert outbox.depth == 1
    assert outbox.drain(WAIT_S)
    assert sink.sizes == [1, 1]


def test_the_depth_counts_events_of_every_kind(make: Make) -> None:
    """Copies and others wait in queues of their own, and both are waiting."""
    _, outbox = make(Pace(gather_s=LONG_S))
    outbox.put([copied(), copied(), Health(time_ns=0)])
    assert outbox.depth == 3
    assert outbox.drain(WAIT_S)
    assert outbox.depth == 0


@pytest.mark.parametrize(("lost", "counted"), [(0, 0), (1, 1), (3, 3), (9, 3)])
def test_a_batch_is_lost_in_part_and_delivered_for_the_rest(lost: int, counted: int) -> None:
    """What a sink says it lost is believed, up to what it was given."""

    class Leaky(Batches):
        def emit(self, events: Sequence[Event]) -> None:
            raise SinkError(f"some of {len(events)} are gone", reason="refused", lost=lost)

    outbox = Outbox(Leaky(Pace(gather_s=LONG_S)), capacity=BATCH)
    outbox.put([copied()] * 3)
    assert outbox.drain(WAIT_S)
    outbox.close(WAIT_S)
    assert outbox.losses().get("refused", 0) == counted
    assert outbox.delivered == 3 - counted


@given(st.lists(st.booleans(), min_size=1, max_size=2 * BATCH))
def test_events_of_both_kinds_leave_in_the_order_in_which_they_came(copies: list[bool]) -> None:
    """Each kind has a queue of its own, so that neither takes the other's room."""
    sink = MemorySink()
    outbox = Outbox(sink, capacity=len(copies))
    told: list[Event] = [
        copied(time_ns=at) if one else Health(time_ns=at) for at, one in enumerate(copies)
    ]
    outbox.put(told)
    outbox.close(WAIT_S)
    assert [event.time_ns for event in sink.events] == list(range(len(copies)))


def test_findings_are_not_crowded_out_by_copies() -> None:
    """With the queue full of copies a finding still has room, and arrives in order."""
    sink = Blocked()
    box = Outbox(sink, capacity=10)
    box.put([numbered(0)])
    while box.depth:  # the thread has taken it and waits in emit
        time.sleep(0.001)
    box.put([numbered(number) for number in range(1, 21)])
    box.put([finding(99)])
    sink.go.set()
    box.close(5.0)
    assert [event.message for event in sink.of(Finding)] == ["number 99"]
    assert len(sink.of(Copied)) == 11
    assert box.lost == {"queue_full": 10}


def test_a_batch_that_a_hanging_sink_holds_is_counted_once() -> None:
    """At close it counts as lost, and not again when the sink returns after all."""
    sink = Blocked()
    box = Outbox(sink, capacity=10)
    box.put([numbered(0)])
    while box.depth:  # the thread has taken it and waits in emit
        time.sleep(0.001)
    assert not box.drain(0.01)  # it has not arrived
    box.put([numbered(1)])
    box.close(0.01)
    assert box.depth == 0
    box.put([numbered(2)])
    assert box.losses() == {"closed": 3}
    sink.go.set()
    box._thread.join(10)
    assert (box.losses(), box.delivered) == ({"closed": 3}, 0)
