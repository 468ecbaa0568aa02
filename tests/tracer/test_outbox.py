"""One sink's queue: a sink with a pace leaves the interpreter to others, unless somebody waits."""

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
from tests.exporters.samples import copied

from hicache_dbg.tracer.events import Event
from hicache_dbg.tracer.outbox import BATCH, Outbox
from hicache_dbg.tracer.sink import Pace

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
    for _ in range(3):
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
