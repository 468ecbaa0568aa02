"""Happens-before by page, on integers, each kind in its own range. Entries are those of the fault reports."""

from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.tracer.checks.ordering import Ordering, Role, Space
from hicache_dbg.tracer.checks.ordering_clocks import ActorId, Clocks, Stamp, Step
from hicache_dbg.tracer.checks.violation import Access, Frame, Violation
from hicache_dbg.tracer.events import FaultClass

HOST = ActorId(1000)
FORWARD, COPY, STORE = (ActorId(2000 + n) for n in range(3))
LAYERS, PAGES = 3, 16
DEVICE = Space("device", "kv")
TABLE = Space("device", "page_table")


class Machine:
    """A clock and a history of accesses, driven by one host thread."""

    def __init__(self) -> None:
        self.clocks = Clocks()
        self.ordering = Ordering()
        self.ordering.watch(DEVICE, LAYERS, PAGES)
        self.ordering.watch(TABLE, 1, PAGES)
        self._events = count(3000)

    def launch(
        self,
        stream: ActorId,
        role: Role,
        *pages: int,
        layers: tuple[int, ...] = tuple(range(LAYERS)),
        space: Space = DEVICE,
    ) -> list[Violation]:
        """Launch work on ``stream`` that accesses these pages."""
        return self.ordering.access(
            space,
            layers,
            np.array(pages, np.int64),
            role=role,
            stamp=self.clocks.submit(HOST, stream),
            by=Access(role.name.lower(), f"stream {stream}"),
        )

    def record(self, stream: ActorId) -> int:
        """Record a new event after the work of ``stream`` so far."""
        event = next(self._events)
        self.clocks.record(stream, event)
        return event

    def host(self, role: Role, *pages: int, space: Space = TABLE) -> list[Violation]:
        """Access rows of a table from the host thread."""
        return self.ordering.access(
            space,
            (0,),
            np.array(pages, np.int64),
            role=role,
            stamp=self.clocks.step(HOST),
            by=Access(role.name.lower(), "host"),
        )


def facts(found: list[Violation]) -> list[tuple[FaultClass, tuple[int, ...]]]:
    """Return class and pages of each violation."""
    return [(item.cls, item.pages) for item in found]


def test_a_store_without_a_wait_is_found() -> None:
    """Entry 34: stream A writes slot 3, the store on B waits for nothing: found; with the wait, clean."""
    bad, good = Machine(), Machine()
    for machine in (bad, good):
        assert machine.launch(FORWARD, Role.COMPUTE_WRITE, 3) == []
    assert facts(bad.launch(STORE, Role.BACKUP_READ, 3)) == [(FaultClass.STORE_BEFORE_WRITE, (3,))]
    good.clocks.wait(STORE, good.record(FORWARD))
    assert good.launch(STORE, Role.BACKUP_READ, 3) == []


def test_host_order_is_not_device_order() -> None:
    """Entry 35: the store is issued one host step later, still without a wait: found."""
    machine = Machine()
    machine.launch(FORWARD, Role.COMPUTE_WRITE, 3)
    machine.clocks.step(HOST)
    assert facts(machine.launch(STORE, Role.BACKUP_READ, 3)) == [
        (FaultClass.STORE_BEFORE_WRITE, (3,))
    ]


def test_a_forward_pass_over_a_page_that_is_being_stored_is_found() -> None:
    """Entry 36: while pages 1 and 2 are being stored, the next forward pass writes page 2."""
    machine = Machine()
    machine.launch(STORE, Role.BACKUP_READ, 1, 2)
    assert facts(machine.launch(FORWARD, Role.COMPUTE_WRITE, 2)) == [
        (FaultClass.STORE_BEFORE_WRITE, (2,))
    ]
    clean = Machine()
    clean.launch(STORE, Role.BACKUP_READ, 1, 2)
    clean.clocks.wait(FORWARD, clean.record(STORE))
    assert clean.launch(FORWARD, Role.COMPUTE_WRITE, 2) == []


def test_an_older_write_may_land_on_a_loaded_slot() -> None:
    """Entry 37: round n writes page 7; it is freed and loaded on the copy stream with no wait: found."""
    bad, good = Machine(), Machine()
    for machine in (bad, good):
        machine.launch(FORWARD, Role.COMPUTE_WRITE, 7)
    (found,) = bad.launch(COPY, Role.LOAD_WRITE, 7)
    assert (found.cls, found.pages) == (FaultClass.READ_BEFORE_LOAD, (7,))
    assert "the older may land last" in found.words
    good.clocks.wait(COPY, good.record(FORWARD))
    assert good.launch(COPY, Role.LOAD_WRITE, 7) == []


def test_a_layer_read_before_its_load_is_found() -> None:
    """Entry 31: without the consumer's fence, reading layer 1 is not ordered after its load."""
    bad, good = Machine(), Machine()
    for machine in (bad, good):
        machine.launch(COPY, Role.LOAD_WRITE, 5, layers=(1,))
    (found,) = bad.launch(FORWARD, Role.COMPUTE_READ, 5, layers=(1,))
    assert (found.cls, found.layers) == (FaultClass.READ_BEFORE_LOAD, (1,))
    good.clocks.wait(FORWARD, good.record(COPY))
    assert good.launch(FORWARD, Role.COMPUTE_READ, 5, layers=(1,)) == []


def test_a_whole_slot_reader_after_only_the_first_layer_is_found() -> None:
    """A reader of all layers that waited for layer 0: the later layers are named."""
    machine = Machine()
    machine.launch(COPY, Role.LOAD_WRITE, 5, layers=(0,))
    first = machine.record(COPY)
    machine.launch(COPY, Role.LOAD_WRITE, 5, layers=(1,))
    machine.launch(COPY, Role.LOAD_WRITE, 5, layers=(2,))
    machine.clocks.wait(FORWARD, first)
    assert machine.launch(FORWARD, Role.COMPUTE_READ, 5, layers=(0,)) == []
    (found,) = machine.launch(FORWARD, Role.COMPUTE_READ, 5)
    assert (found.cls, found.layers) == (FaultClass.READ_BEFORE_LOAD, (1, 2))


@pytest.mark.parametrize("landed", range(LAYERS + 1))
def test_a_layer_that_is_yet_to_come_is_known_before_it_is_read(landed: int) -> None:
    """A load announces its layers at its begin, so an early reader is found at once."""
    machine, mover = Machine(), ActorId(1002)
    first = machine.clocks.promise(mover, machine.clocks.step(HOST), LAYERS)
    steps = [Step(first.step + layer) for layer in range(LAYERS)]
    layers, pages = tuple(range(LAYERS)), np.array([5], np.int64)
    load = Access("load", "mover")
    machine.ordering.access(
        DEVICE, layers, pages, role=Role.LOAD_WRITE, stamp=first, by=load, steps=steps
    )
    for step in steps[:landed]:
        machine.clocks.learn(HOST, Stamp(mover, step, first.clock))
    found = machine.launch(FORWARD, Role.COMPUTE_READ, 5)
    assert [item.layers for item in found] == ([layers[landed:]] if landed < LAYERS else [])
    assert machine.launch(FORWARD, Role.COMPUTE_READ, 4) == []


def test_a_table_overwritten_under_its_copy_is_found() -> None:
    """Entry 98: T = [1, 2], the copy is open, the host writes T = [3, 4]: found; after a wait, clean."""
    bad, good = Machine(), Machine()
    for machine in (bad, good):
        assert machine.host(Role.TABLE_WRITE, 0, 1) == []
        assert machine.launch(COPY, Role.TABLE_READ, 0, 1, layers=(0,), space=TABLE) == []
    assert facts(bad.host(Role.TABLE_WRITE, 0, 1)) == [(FaultClass.CONTROL_TABLE, (0, 1))]
    good.clocks.wait(HOST, good.record(COPY))
    assert good.host(Role.TABLE_WRITE, 0, 1) == []


def test_order_through_a_lock_counts() -> None:
    """Two threads that take the same lock in turn are ordered in that direction only."""
    machine = Machine()
    worker = ActorId(1001)

    def access(actor: ActorId, role: Role) -> list[Violation]:
        pages = np.array([2], np.int64)
        stamp = machine.clocks.step(actor)
        who = Access(role.name, str(actor))
        return machine.ordering.access(DEVICE, (0,), pages, role=role, stamp=stamp, by=who)

    access(HOST, Role.COMPUTE_WRITE)
    machine.clocks.meet(HOST, "lock")
    machine.clocks.meet(worker, "lock")
    assert access(worker, Role.BACKUP_READ) == []
    access(HOST, Role.COMPUTE_WRITE)  # after the lock was let go
    machine.clocks.meet(worker, "lock")
    assert facts(access(worker, Role.BACKUP_READ)) == [(FaultClass.STORE_BEFORE_WRITE, (2,))]


def test_a_space_that_was_forgotten_begins_anew() -> None:
    """Memory that is used again for another pool has no history."""
    machine = Machine()
    machine.launch(FORWARD, Role.COMPUTE_WRITE, 3)
    machine.ordering.forget(DEVICE)
    assert not machine.ordering.watches(DEVICE)
    assert machine.launch(STORE, Role.BACKUP_READ, 3) == []
    machine.ordering.watch(DEVICE, LAYERS, PAGES)
    assert machine.launch(STORE, Role.BACKUP_READ, 3) == []
    assert machine.launch(FORWARD, Role.COMPUTE_WRITE, 3)


def test_the_report_names_the_conflicting_pair() -> None:
    """Golden text: page, layers, this access, the conflicting one, and the allocation."""
    machine = Machine()
    site = (Frame("/x/repro/model.py", 40, "prefill"),)
    machine.ordering.access(
        DEVICE,
        (0, 1, 2),
        np.array([3, 4], np.int64),
        role=Role.COMPUTE_WRITE,
        stamp=machine.clocks.submit(HOST, FORWARD),
        by=Access("kernel write_kv", "stream forward", site),
    )
    (found,) = machine.launch(STORE, Role.BACKUP_READ, 3)
    assert str(found) == (
        "device page 3, layers 0..2: a backup reads it and nothing orders that with its writer; "
        "this access: backup_read on stream 2002; previous access: kernel write_kv on "
        "stream forward at model.py:40 prefill; allocated: unknown, tracing began later"
    )
    assert found.pool == "kv"
    assert found.advice == (
        "let the backup wait for an event that was recorded after the last write"
    )


#: A program: (what, stream, the other stream or the page).
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(0, 2), st.integers(0, 2)),
        st.tuples(st.sampled_from(["write", "backup"]), st.integers(0, 2), st.integers(0, 3)),
    ),
    max_size=25,
)


@given(program=STEPS)
def test_a_finding_is_exactly_a_missing_path(program: list[tuple[str, int, int]]) -> None:
    """A backup is accused exactly if no path of waits leads to it from some write."""
    machine = Machine()
    last: dict[int, set[int]] = {stream: set() for stream in range(3)}  # done before its next step
    writes: dict[int, set[tuple[int, int]]] = {page: set() for page in range(4)}
    for number, (what, stream, other) in enumerate(program):
        actor = ActorId(2000 + stream)
        if what == "wait":
            machine.clocks.wait(actor, machine.record(ActorId(2000 + other)))
            last[stream] |= last[other]
            continue
        if what == "write":
            machine.launch(actor, Role.COMPUTE_WRITE, other)
            writes[other] = {item for item in writes[other] if item[1] != stream} | {
                (number, stream)
            }
        else:
            unseen = [n for n, where in writes[other] if where != stream and n not in last[stream]]
            assert bool(machine.launch(actor, Role.BACKUP_READ, other)) == bool(unseen)
        last[stream] |= {number}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=30))
def test_what_an_actor_knows_is_never_forgotten(meetings: list[tuple[int, int]]) -> None:
    """Whoever it waits for, and however little they know of others."""
    clocks = Clocks()
    for actor, other in meetings:
        before = clocks.now(ActorId(actor)).clock
        if actor == other:
            clocks.step(ActorId(actor))
        else:
            clocks.meet_actor(ActorId(actor), ActorId(other))
        after = clocks.now(ActorId(actor)).clock
        assert {who: max(step, after.get(who, 0)) for who, step in before.items()}.items() <= (
            after.items()
        )


@given(
    role=st.sampled_from([Role.COMPUTE_READ, Role.COMPUTE_WRITE]),
    other=st.sampled_from([Role.COMPUTE_READ, Role.COMPUTE_WRITE]),
)
def test_the_models_own_kernels_are_not_judged(role: Role, other: Role) -> None:
    """Without a copy involved, no order is judged."""
    machine = Machine()
    machine.launch(FORWARD, other, 1)
    assert machine.launch(COPY, role, 1) == []
