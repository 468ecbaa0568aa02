"""The bus: bounded, in order, never waiting for a sink, and surviving whatever fails in it."""

import os
import threading
import time
from collections.abc import Iterable, Sequence

import pytest
from tests.tracer.bus_parts import Blocked, Dead, MakeBus, copied, finding

from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.collapse import FindingCollapser
from hicache_dbg.tracer.events import Copied, Event, Health
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.selfcheck import InternalErrors


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
