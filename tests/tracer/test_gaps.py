"""What was not seen is not held against anybody: lost records, copies while tracing was off."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pools.caching import group_of, sequences, turn
from tests.tracer.rig import Rig

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.tracer.events import Copied, Finding
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["backup", "load"]),
        st.sampled_from(["seen", "lost", "off"]),
        st.integers(0, 1),
        st.integers(0, 1),
    ),
    max_size=12,
)


@contextmanager
def unseen(rig: Rig, how: str) -> Iterator[None]:
    """What happens inside finds no room in the ring, or tracing is off."""
    bus = rig.session.bus
    capacity = bus._capacity
    if how == "lost":
        bus._capacity = 0
    elif how == "off":
        rig.session.switch(on=False)
    yield
    bus._capacity = capacity
    if how == "off":
        rig.session.switch(on=True)


@pytest.mark.parametrize("checksum", [Checksum.LOADS, Checksum.ENDS, Checksum.THREE])
@settings(deadline=None)
@given(steps=STEPS)
def test_pages_rewritten_in_one_life_are_never_damage(
    checksum: Checksum, steps: list[tuple[str, str, int, int]]
) -> None:
    """A page may be backed up again without a new hand-out, and any of its copies may go unseen."""
    rig = Rig(checksum)
    for number, (what, how, host, device) in enumerate(steps):
        rig.device[:, device] = number + 1
        with unseen(rig, how):
            (rig.backup if what == "backup" else rig.load)([host], [device])
    _, found = rig.finish()
    assert found == []


def test_a_page_that_is_seen_again_is_vouched_for_again() -> None:
    """After a gap it is unwitnessed until its next backup, and compared from then on."""
    rig = Rig(Checksum.LOADS)
    rig.backup([1], [3])
    with unseen(rig, "lost"):
        rig.backup([1], [4])
    rig.load([1], [5])
    rig.backup([1], [4])
    rig.load([1], [5])
    rig.host[0, 1, 0] ^= 1
    rig.load([1], [5])
    copied, (found,) = rig.finish()
    loads = [copy for copy in copied if copy.op == "load"]
    assert [sum(copy.skipped.values()) > 0 for copy in loads] == [True, False, False]
    assert (found.cls, loads[-1].mismatched) == ("bit_flip", 1)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_an_engine_that_is_looked_at_now_and_then_is_never_accused(looked: list[bool]) -> None:
    """Tracing is switched off for some readers: what it finds afterwards is believed."""
    sink = MemorySink()
    with (
        Runtime.start(Settings(gate=Gate.ON, scrub_mb_s=1000.0), sinks=[sink]) as runtime,
        HiCacheController(group_of(6, 12)) as controller,
    ):
        readers = sequences([[0, 1, 2], [1, 1, 1], [2, 0, 1]])
        for number, on in enumerate(looked):
            runtime.switch(on=on)
            turn(controller, readers[number % len(readers)])
            controller.flush()
            if runtime._scrubber is not None:
                runtime._scrubber.turn()
        assert runtime.flush()
    assert sink.of(Finding) == []
    assert bool(sink.of(Copied)) >= all(looked)
