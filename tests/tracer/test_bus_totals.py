"""What the bus says of itself: totals over everything that happened, findings of a kind as one."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exporters import samples
from tests.tracer.bus_parts import MakeBus, copied, finding

from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.events import Finding, Health
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.selfcheck import InternalErrors


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


def test_a_clock_that_is_set_back_makes_no_negative_cost() -> None:
    """A counter that would have to fall is refused by its sink, and the rest of the batch with it."""
    sink = MemorySink()
    bus = Bus([sink], capacity=4, errors=InternalErrors(reraise=True), overhead=lambda: -3600.0)
    bus.close()
    assert [health.overhead_s for health in sink.of(Health)] == [0.0]


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
