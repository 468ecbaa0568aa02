"""What is handed in to the bus is judged once, or dropped once, or refused: never lost in silence."""

import threading
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracer.bus_parts import Gated, MakeBus, Unready, copied, finding

from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.events import Copied, Event, Health
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.selfcheck import InternalErrors


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
