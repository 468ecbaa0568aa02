"""What was not seen is not held against anybody: lost records, copies while tracing was off."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pools.caching import group_of, sequences, turn
from tests.tracer.rig import Rig

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.repro.faults.rehearsal import rehearse
from hicache_dbg.tracer.attach import hicache_copies, hicache_keys, hicache_pages, hicache_readers
from hicache_dbg.tracer.attach.call_site import access
from hicache_dbg.tracer.attach.hicache import HiCacheAttachment
from hicache_dbg.tracer.attach.hicache_pages import PageNotes, Together
from hicache_dbg.tracer.attach.notes import Notes
from hicache_dbg.tracer.bus import RESERVE, Bus
from hicache_dbg.tracer.checks.ownership import Ownership
from hicache_dbg.tracer.events import Copied, FaultClass, Finding, Health, Topic
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
    """Lose what happens inside: the ring is full, or tracing is off."""
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
    """A page may be backed up again in the same generation, and any of its copies may go unseen."""
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


class Waiting:
    """A record that lets nothing past until it is open."""

    open = False

    def ready(self) -> bool:
        """Return whether it is."""
        return self.open

    def events(self) -> tuple[()]:
        """Return nothing."""
        return ()


def test_a_switch_is_met_however_full_the_ring_is() -> None:
    """Copies are judged again after tracing was switched while neither copies nor events had room."""
    rig, gate = Rig(Checksum.LOADS), Waiting()
    session = rig.session
    session.bus._capacity = 1
    session.push(gate)
    while session.bus.publish(Health(time_ns=0)):
        pass
    session.switch(on=False)
    session.switch(on=True)
    assert not session.watched()
    gate.open = True
    assert session.bus.settle(10)
    assert session.watched()
    rig.finish()


def test_what_was_found_has_room_beside_copies_and_tiles() -> None:
    """A hand-over of many pages states thousands of tiles; they do not crowd out a finding."""
    rig = Rig(Checksum.LOADS)
    session, gate = rig.session, Waiting()
    session.bus._capacity = 4
    session.push(gate)
    for page in range(2 * RESERVE):
        session.state(Topic.TILES, ("0" * 16,), role="prefill", request="r", page=page)
    session.tell([Finding(time_ns=1, cls=FaultClass.SLOT_REUSE, pool="kv", message="found")])
    gate.open = True
    _, found = rig.finish()
    assert [one.message for one in found] == ["found"]


def test_writes_that_are_no_longer_counted_are_trusted_by_no_later_switch() -> None:
    """A signal's handler may switch tracing on while the wrappers are removed."""
    with Runtime.start(Settings(gate=Gate.ON), sinks=[MemorySink()]) as runtime:
        session = runtime.session
        assert session.watched()
        session.unwatch()
        runtime.switch(on=True)
        assert runtime.flush()
        assert not session.watched()


def test_a_lost_switch_is_made_good_by_the_next() -> None:
    """A forked child starts with an empty ring: a switch that the parent's bus had not met is lost."""
    rig = Rig(Checksum.LOADS)
    session = rig.session
    bus, session.bus = session.bus, Bus([], capacity=1, errors=session.errors)
    session.bus.close()
    session.switch(on=True)
    session.bus = bus
    assert not session.watched()
    session.switch(on=True)
    assert bus.settle(10)
    assert session.watched()
    rig.finish()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_an_engine_that_is_looked_at_now_and_then_is_never_accused(looked: list[bool]) -> None:
    """Tracing is off for some readers: what it finds afterwards is trusted."""
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


#: The rehearsal takes some ninety notes; its kernels are queued, and run later.
NOTES = range(1, 80, 6)


@contextmanager
def rehearsed(sink: MemorySink) -> Iterator[Runtime]:
    """Let two readers take turns with their kernels on a stream, without a fault."""
    with Runtime.start(Settings(gate=Gate.ON), sinks=[sink]) as runtime:
        yield runtime
        attachment = runtime.attachment
        assert isinstance(attachment, HiCacheAttachment)
        seen = rehearse(None, attachment.lifetimes.host_access)
        assert (seen.wrong, seen.errors) == ([], [])
        assert runtime.flush()
    assert sink.of(Finding) == []


@pytest.mark.parametrize("number", NOTES)
def test_a_note_lost_between_a_kernel_and_its_copy_accuses_nobody(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The order of an already queued kernel is then unknown, and so is who waited for it."""
    take, taken = Notes.take, count(1)

    def seen(notes: Notes, *args: Any, **more: Any) -> None:
        if next(taken) == number:
            notes.lose()
            notes.here.turns.clear()
        else:
            take(notes, *args, **more)

    monkeypatch.setattr(Notes, "take", seen)
    with rehearsed(MemorySink()):
        pass
    assert next(taken) > number


@pytest.mark.parametrize("number", NOTES)
@pytest.mark.parametrize("where", ["noted", "judged"])
def test_a_failure_of_ours_is_counted_and_accuses_nobody(
    monkeypatch: pytest.MonkeyPatch, internal_errors: list[str], where: str, number: int
) -> None:
    """If a record cannot be made or judged, the books are reset."""
    called = count(1)

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            if next(called) == number:
                raise RuntimeError("a bug of ours")
            return real(*args, **more)

        return call

    if where == "noted":
        for module in (hicache_copies, hicache_pages, hicache_keys, hicache_readers):
            monkeypatch.setattr(module, "access", failing(access))
    else:
        for turn in ("alloc", "free", "acquire", "close", "read"):
            monkeypatch.setattr(Ownership, turn, failing(getattr(Ownership, turn)))
    sink = MemorySink()
    with rehearsed(sink):
        pass
    assert sum(sink.of(Health)[-1].errors.values()) == len(internal_errors)
    assert len(internal_errors) == (next(called) > number)
    internal_errors.clear()


def test_holds_that_are_no_operations_are_noted_or_counted(
    monkeypatch: pytest.MonkeyPatch, internal_errors: list[str]
) -> None:
    """If an operation cannot be recorded its holds are; if that fails too, the host does not notice."""

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(Together, "claim", fails)
    monkeypatch.setattr(PageNotes, "moved", fails)
    sink = MemorySink()
    with rehearsed(sink):
        pass
    assert sink.of(Health)[-1].errors["lifetimes/acquire"] > 0
    internal_errors.clear()


def test_caches_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache whose allocator is in use blocks no other, nor its own thread if interrupted."""
    inside, leave = threading.Event(), threading.Event()
    original = PageAllocator.alloc
    first, second = PageAllocator(4, "first"), PageAllocator(4, "second")

    def alloc(allocator: PageAllocator, pages: int, owner: int = 0) -> Any:
        if allocator is first and not inside.is_set():
            inside.set()
            first.free(first.alloc(1))  # as a signal's handler would
            assert leave.wait(30)
        return original(allocator, pages, owner)

    monkeypatch.setattr(PageAllocator, "alloc", alloc)
    with Runtime.start(Settings(gate=Gate.ON), sinks=[MemorySink()]):
        held = threading.Thread(target=lambda: first.alloc(1), daemon=True)
        held.start()
        assert inside.wait(30)
        other = threading.Thread(target=lambda: second.alloc(1), daemon=True)
        other.start()
        other.join(30)
        assert not other.is_alive()
        leave.set()
        held.join(30)
        assert not held.is_alive()
