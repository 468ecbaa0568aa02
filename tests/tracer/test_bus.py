"""The bus: bounded, in order, never waiting for a sink, and honest about what is lost."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exporters import samples

from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.collapse import FindingCollapser
from hicache_dbg.tracer.events import Copied, Event, FaultClass, Finding, Health
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.outbox import Outbox
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.sink import Sink, SinkError


def copied(number: int = 0, *, pool: str = "mla", verified: int = 0) -> Copied:
    """A copy event; ``number`` tells one from another."""
    return samples.copied(
        time_ns=number, op_id=number, pool=pool, verified=verified, witnessed=0, skipped={}
    )


def finding(number: int = 0, *, pool: str = "mla") -> Finding:
    """A finding; those of one pool are alike."""
    return Finding(time_ns=number, cls=FaultClass.ROW_WIDTH, pool=pool, message=f"number {number}")


class Unready:
    """A record whose digests never arrive."""

    def ready(self) -> bool:
        """Return False."""
        return False

    def events(self) -> Sequence[Event]:
        """Return nothing."""
        return ()


class Gated(Unready):
    """A record that is ready once it is let pass."""

    open = False

    def ready(self) -> bool:
        """Return whether it may pass."""
        return self.open


class Blocked(MemorySink):
    """A sink that accepts nothing until released."""

    name = "blocked"

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def emit(self, events: Sequence[Event]) -> None:
        """Wait, then keep."""
        self.go.wait(10)
        super().emit(events)


class Dead(MemorySink):
    """A sink that loses every batch."""

    name = "dead"

    def emit(self, events: Sequence[Event]) -> None:
        """Lose the batch and report it."""
        raise SinkError("nobody listens", reason="refused", lost=len(events))


MakeBus = Callable[..., Bus]


@pytest.fixture
def make_bus() -> Iterator[MakeBus]:
    """Builds buses that are closed at the end."""
    built: list[Bus] = []

    def make(*sinks: Sink, capacity: int = 1000) -> Bus:
        built.append(Bus(sinks, capacity=capacity, errors=InternalErrors(reraise=False)))
        return built[-1]

    yield make
    for bus in built:
        bus.close(1.0)


def test_the_thread_is_made_ready_for_devices_once_there_are_some() -> None:
    """The bus thread asks until the answer is yes, and then no more."""
    asked: list[str] = []

    def prepare() -> bool:
        asked.append(threading.current_thread().name)
        return len(asked) == 3

    sink = MemorySink()
    bus = Bus([sink], capacity=8, errors=InternalErrors(), prepare=prepare)
    for number in range(6):
        bus.publish(copied(number))
        assert bus.flush(10)
    bus.close(10)
    assert asked == ["hicache-dbg-bus"] * 3
    assert len(sink.of(Copied)) == 6


def test_events_arrive_at_every_sink_in_order(make_bus: MakeBus) -> None:
    """What is pushed comes out at each sink, whole and in order."""
    sinks = MemorySink(), MemorySink()
    bus = make_bus(*sinks)
    for number in range(500):
        assert bus.publish(copied(number))
    assert bus.flush(5)
    for sink in sinks:
        assert [event.op_id for event in sink.of(Copied)] == list(range(500))


def test_a_full_ring_drops_and_counts(make_bus: MakeBus) -> None:
    """The hot path never waits: beyond the capacity push returns False, and health has the count."""
    gate = threading.Event()

    class Unready:
        """A record whose digests are not readable yet."""

        def ready(self) -> bool:
            """Not before the gate opens."""
            return gate.is_set()

        def events(self) -> Sequence[Event]:
            """One copy."""
            return (copied(),)

    sink = MemorySink()
    bus = make_bus(sink, capacity=10)
    taken = [bus.push(Unready()) for _ in range(25)]
    assert taken.count(True) == 10
    assert bus.health().dropped == {"bus/queue_full": 15}
    gate.set()
    assert bus.flush(5)
    assert len(sink.of(Copied)) == 10


def test_what_is_published_finds_room_beside_a_full_ring(make_bus: MakeBus) -> None:
    """A finding at registration is not lost because copies are waiting."""
    bus = make_bus(MemorySink(), capacity=2)
    assert [bus.push(Unready()) for _ in range(3)] == [True, True, False]
    assert bus.publish(finding())


def test_what_must_not_be_lost_finds_room_beside_anything(make_bus: MakeBus) -> None:
    """A record that is insisted on is taken even if published events fill the ring."""
    bus, ran = make_bus(MemorySink(), capacity=1), list[int]()

    class Switch:
        """A record that says that it was judged."""

        def ready(self) -> bool:
            """At once."""
            return True

        def events(self) -> Sequence[Event]:
            """Nothing."""
            ran.append(1)
            return ()

    gate = Gated()
    bus.push(gate)
    while bus.publish(finding()):
        pass
    assert bus.insist(Switch())
    gate.open = True
    assert bus.settle(5)
    assert ran == [1]


def test_a_clock_that_is_set_back_makes_no_negative_cost() -> None:
    """A counter that would have to fall is refused by its sink, and the rest of the batch with it."""
    sink = MemorySink()
    bus = Bus([sink], capacity=4, errors=InternalErrors(reraise=True), overhead=lambda: -3600.0)
    bus.close()
    assert [health.overhead_s for health in sink.of(Health)] == [0.0]


def test_records_that_come_too_late_are_counted(make_bus: MakeBus) -> None:
    """Records still waiting for digests at close, and later ones, are lost as closed."""
    sink = MemorySink()
    bus = make_bus(sink)
    bus.push(Unready())
    bus.close(0.1)
    assert sink.of(Health)[-1].dropped == {"bus/closed": 1}
    assert not bus.publish(copied())
    assert bus.health().dropped == {"bus/closed": 2}


def test_what_was_accepted_and_is_left_at_close_is_dropped_once(make_bus: MakeBus) -> None:
    """A record lets go of what it holds if it is not judged; a refused one is its caller's."""

    class Holding(Unready):
        """A record that holds something."""

        drops = 0

        def drop(self) -> None:
            """Count."""
            self.drops += 1

    left, behind, refused = Holding(), Holding(), Holding()
    bus = make_bus(MemorySink(), capacity=2)
    assert [bus.push(each) for each in (left, behind, refused)] == [True, True, False]
    bus.close(0.1)
    bus._thread.join(30)
    assert [each.drops for each in (left, behind, refused)] == [1, 1, 0]


class Counted:
    """A record that says what became of it."""

    def __init__(self, number: int, order: list[int], *, ready: bool) -> None:
        self.number, self.is_ready, self._order = number, ready, order
        self.drops = 0

    def ready(self) -> bool:
        """Return whether it is."""
        return self.is_ready

    def events(self) -> Sequence[Event]:
        """Return nothing."""
        self._order.append(self.number)
        return ()

    def drop(self) -> None:
        """Count."""
        self.drops += 1


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.sampled_from(["push", "hold", "publish", "insist", "open", "settle"]), max_size=25),
    st.integers(1, 4),
)
def test_whatever_is_handed_in_is_judged_or_dropped_or_refused(
    steps: list[str], capacity: int
) -> None:
    """Once, in order, and counted: over any sequence of calls, up to the close and after it."""
    bus = Bus([], capacity=capacity, errors=InternalErrors(reraise=True))
    order, taken, refused = list[int](), list[Counted](), list[Counted]()
    for number, step in enumerate([*steps, "close", "push"]):
        if step in {"push", "hold", "insist"}:
            record = Counted(number, order, ready=step != "hold")
            accept = bus.insist if step == "insist" else bus.push
            (taken if accept(record) else refused).append(record)
        elif step == "publish":
            bus.publish(finding(number))
        elif step == "open":
            for record in taken:
                record.is_ready = True
        elif step == "settle":
            bus.settle(0.01)
        else:
            bus.close(0.02)
            bus._thread.join(30)  # on a machine under load it takes longer to end
    dropped = [one.number for one in taken if one.drops == 1]
    assert order == sorted(order)
    assert sorted(order + dropped) == [one.number for one in taken]
    assert not any(one.drops or one.number in order for one in refused)
    lost = bus.health().dropped
    assert lost["bus/closed"] >= len(dropped) + 1  # with the one behind the close
    assert sum(lost.values()) >= len(dropped) + len(refused)


def test_a_record_that_cannot_say_whether_it_is_ready_stops_nothing(
    make_bus: MakeBus, internal_errors: list[str]
) -> None:
    """The bus thread survives it and processes what follows."""

    class Broken:
        """A record whose device is gone."""

        def ready(self) -> bool:
            """Never says."""
            raise RuntimeError("planted")

        def events(self) -> Sequence[Event]:
            """Nothing to read."""
            return ()

    sink = MemorySink()
    bus = make_bus(sink)
    bus.push(Broken())
    bus.publish(copied(5))
    assert bus.flush(5)
    assert [event.op_id for event in sink.of(Copied)] == [5]
    assert internal_errors == ["bus/ready: RuntimeError: planted"]
    internal_errors.clear()


def test_the_heart_beats_under_load() -> None:
    """A ring that never empties delays neither health events nor the close."""

    class Endless:
        """A record that brings the next one."""

        def ready(self) -> bool:
            """At once."""
            return True

        def events(self) -> Sequence[Event]:
            """None, but one more record."""
            bus.push(self)
            return ()

    sink = MemorySink()
    bus = Bus([sink], capacity=10, errors=InternalErrors(), heartbeat_s=0.001)
    bus.push(Endless())
    deadline = time.monotonic() + 10
    while not sink.events and time.monotonic() < deadline:
        time.sleep(0.001)
    bus.close(1.0)
    beats = sink.of(Health)
    assert not beats[0].closing
    assert beats[-1].closing


def test_a_dead_sink_harms_nobody_else_and_its_loss_is_exact(make_bus: MakeBus) -> None:
    """The other sink gets everything; health says how much the dead one lost."""
    alive, dead = MemorySink(), Dead()
    bus = make_bus(dead, alive)
    for number in range(100):
        bus.publish(copied(number))
    bus.close(2.0)
    assert len(alive.of(Copied)) == 100
    lost = bus.health().dropped
    assert sum(lost.values()) == 101  # the copies and the closing health event
    assert bus.health().errors["sink/dead"] >= 1


def test_findings_are_not_crowded_out_by_copies() -> None:
    """With the queue full of copies a finding still has room, and arrives in order."""
    sink = Blocked()
    box = Outbox(sink, capacity=10)
    box.put([copied(0)])
    while box.depth:  # the thread has taken it and waits in emit
        time.sleep(0.001)
    box.put([copied(number) for number in range(1, 21)])
    box.put([finding(99)])
    sink.go.set()
    box.close(5.0)
    assert [event.message for event in sink.of(Finding)] == ["number 99"]
    assert len(sink.of(Copied)) == 11
    assert box.lost == {"queue_full": 10}


def test_equal_findings_are_one_line_and_a_count(make_bus: MakeBus) -> None:
    """The first is sent at once, equal ones as one event with a count, different ones separately."""
    sink = MemorySink()
    bus = make_bus(sink)
    for number in range(100):
        bus.publish(finding(number))
    bus.publish(finding(0, pool="index_k"))
    bus.close(2.0)
    found = [(event.pool, event.count) for event in sink.of(Finding)]
    assert found == [("mla", 1), ("index_k", 1), ("mla", 99)]
    assert sink.of(Health)[-1].findings == 101


def test_the_last_word_is_a_closing_health_event(make_bus: MakeBus) -> None:
    """At close the totals are sent, marked as the last."""
    sink = MemorySink()
    bus = make_bus(sink)
    bus.publish(copied(verified=7))
    bus.close(2.0)
    last = sink.events[-1]
    assert isinstance(last, Health)
    assert (last.closing, last.copies, last.verified) == (True, 1, 7)


def test_close_is_bounded_with_a_sink_that_hangs(make_bus: MakeBus) -> None:
    """A sink that never returns costs the time limits, not the process's exit."""
    sink = Blocked()
    bus = make_bus(sink)
    bus.publish(copied())
    began = time.monotonic()
    bus.close(0.2)
    assert time.monotonic() - began < 5
    sink.go.set()


def test_a_record_that_fails_is_counted_and_the_next_one_passes(
    make_bus: MakeBus, internal_errors: list[str]
) -> None:
    """A bug in a check loses that record only."""

    class Broken:
        """A record whose judging fails."""

        def ready(self) -> bool:
            """At once."""
            return True

        def events(self) -> Sequence[Event]:
            """Never."""
            raise ZeroDivisionError("planted")

    sink = MemorySink()
    bus = make_bus(sink)
    bus.push(Broken())
    bus.publish(copied(5))
    assert bus.flush(5)
    assert [event.op_id for event in sink.of(Copied)] == [5]
    assert bus.health().errors == {"bus": 1}
    assert internal_errors.pop().startswith("bus: ZeroDivisionError")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_turn_that_fails_is_counted_and_the_bus_goes_on(
    make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch, internal_errors: list[str]
) -> None:
    """An exception anywhere in the loop must not end the thread, which could not even report it."""
    sink = MemorySink()
    bus = make_bus(sink)
    pass_on = FindingCollapser.pass_on

    def fails_once(collapser: FindingCollapser, events: Iterable[Event]) -> Iterable[Event]:
        monkeypatch.setattr(FindingCollapser, "pass_on", pass_on)
        raise MemoryError("no room")

    monkeypatch.setattr(FindingCollapser, "pass_on", fails_once)
    bus.publish(copied(1))
    assert bus.flush()
    bus.publish(copied(2))
    bus.close()
    assert [event.op_id for event in sink.of(Copied)] == [2]
    assert sink.of(Health)[-1].errors == {"bus/turn": 1}
    internal_errors.clear()


def test_sinks_that_hang_are_waited_for_together(make_bus: MakeBus) -> None:
    """However many there are, the host waits for them in parallel at exit."""
    leave = threading.Event()

    class Hanging(MemorySink):
        def emit(self, events: Sequence[Event]) -> None:  # noqa: ARG002 - a sink's own
            leave.wait(60)

    bus = make_bus(*[Hanging() for _ in range(6)])
    bus.publish(finding())
    began = time.monotonic()
    bus.close(0.5)
    took = time.monotonic() - began
    leave.set()
    assert took < 6 * 0.5


def test_a_forked_child_has_a_bus_of_its_own(make_bus: MakeBus) -> None:
    """After a fork the child's events are delivered, and the parent's are not sent twice."""
    sink = MemorySink()
    bus = make_bus(sink)
    bus.publish(copied(1))
    assert bus.flush(5)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - runs in the child
        sink.events.clear()
        bus.publish(copied(2))
        bus.flush(5)
        os.write(writer, ",".join(str(event.op_id) for event in sink.of(Copied)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    assert os.read(reader, 100) == b"2"
    os.close(reader)


def test_a_batch_that_a_hanging_sink_holds_is_counted_once() -> None:
    """At close it counts as lost, and not again when the sink returns after all."""
    sink = Blocked()
    box = Outbox(sink, capacity=10)
    box.put([copied(0)])
    while box.depth:  # the thread has taken it and waits in emit
        time.sleep(0.001)
    assert not box.drain(0.01)  # it has not arrived
    box.put([copied(1)])
    box.close(0.01)
    assert box.depth == 0
    box.put([copied(2)])
    assert box.losses() == {"closed": 3}
    sink.go.set()
    box._thread.join(10)
    assert (box.losses(), box.delivered) == ({"closed": 3}, 0)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            *(st.integers(0, 3) for _ in range(3)),
            st.dictionaries(st.sampled_from(["off", "reused"]), st.integers(1, 3)),
        ),
        max_size=6,
    )
)
def test_the_totals_are_the_sums_over_all_copies(
    outcomes: list[tuple[int, int, int, dict[str, int]]],
) -> None:
    """Each outcome of each tile is counted once, the skipped ones by their reason."""
    sink = MemorySink()
    bus = Bus([sink], capacity=100, errors=InternalErrors())
    names = ("verified", "witnessed", "mismatched")
    for *tried, skipped in outcomes:
        tiles = dict(zip(names, tried, strict=True))
        bus.publish(samples.copied(time_ns=0, skipped=skipped, **tiles))
    bus.close(10)
    health = bus.health()
    assert health.copies == len(outcomes)
    assert health.events == len(sink.events)
    for at, name in enumerate(names):
        counts = [outcome[:3][at] for outcome in outcomes]
        assert getattr(health, name) == sum(counts)
    reasons = [reason for *_, skipped in outcomes for reason in Counter(skipped).elements()]
    assert health.skipped == Counter(reasons)


def test_flush_waits_for_what_is_on_its_way_to_the_sinks(
    make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty ring is not enough: the last records may not have reached the sinks."""
    sink, there, go = MemorySink(), threading.Event(), threading.Event()
    bus = make_bus(sink)
    deliver = bus._deliver

    def held(events: list[Event]) -> None:
        there.set()
        go.wait(10)
        deliver(events)

    monkeypatch.setattr(bus, "_deliver", held)
    bus.publish(copied())
    assert there.wait(10)
    assert not bus.flush(0.01)
    go.set()
    assert bus.flush(10)
    assert len(sink.of(Copied)) == 1
