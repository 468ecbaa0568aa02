"""Schedules: faults are found, shrunk and reproducible, and a correct engine is clean."""

from functools import partial

import pytest

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.streams import SimulatedStream
from hicache_dbg.pools.transfer import TransferEngine
from hicache_dbg.repro.explore import exploring
from hicache_dbg.repro.explore_cases import EAGERNESS, case_of
from hicache_dbg.repro.explore_stage import Stage, StageCondition, StageWorker
from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.repro.faults.registry import FAULTS
from hicache_dbg.tracer.events import FaultClass

RACES = [
    fault
    for fault in FAULTS.values()
    if fault.cls
    in {FaultClass.SLOT_REUSE, FaultClass.READ_BEFORE_LOAD, FaultClass.STORE_BEFORE_WRITE}
]


@pytest.mark.parametrize("fault", RACES, ids=lambda fault: fault.name)
def test_a_race_is_found_and_shrunk(fault: Fault) -> None:
    """Every race is found in the first 1000 schedules under its class, in at most six operations."""
    with exploring(fault) as explorer:
        first = explorer.first_broken(1000)
        assert first is not None
        simplest = explorer.shrink(first)
    assert first.what == simplest.what == fault.cls
    assert len(simplest.case.operations) <= min(6, len(first.case.operations))
    marked = {step.mark: step for step in simplest.steps if step.mark}
    assert set(marked) == {"this", "previous"}
    assert marked["this"].number == max(step.number for step in simplest.steps)


def test_a_clean_engine_survives() -> None:
    """Without a fault no schedule fails, in any order and with any policy."""
    cases = [case_of(seed) for seed in range(150)]
    assert {case.policy for case in cases} >= {"write_through", "write_back"}
    assert {case.eagerness for case in cases} == set(EAGERNESS)
    with exploring() as explorer:
        assert explorer.first_broken(150) is None


def test_readers_that_share_a_load_wait_for_its_layers() -> None:
    """In this schedule one joins a load while another one waits at its gate: neither is stuck."""
    with exploring() as explorer:
        assert explorer.run(case_of(777482)) is None


def test_a_seed_breaks_again() -> None:
    """The same case fails at the same step with the same message."""
    with exploring(FAULTS["a_getter_without_a_wait"]) as explorer:
        first = explorer.first_broken(1000)
        assert first is not None
        again = explorer.run(first.case)
    assert again is not None
    assert (again.what, again.words, again.steps) == (first.what, first.words, first.steps)


def test_readers_see_what_no_check_does() -> None:
    """Wrong bytes fail a schedule even if every access was ordered."""
    with exploring(FAULTS["host_sized_for_fp8"]) as explorer:
        broken = explorer.first_broken(100)
    assert broken is not None
    assert broken.what == "wrong bytes"
    assert "dsa_index_k" in broken.words


def test_nothing_stays_attached() -> None:
    """After exploring, the engine's functions are the very same objects as before."""
    owners = (PageAllocator, "alloc"), (TransferEngine, "load"), (SimulatedStream, "submit")
    before = [owner.__dict__[name] for owner, name in owners]
    with exploring() as explorer:
        assert explorer.run(case_of(0)) is None
    assert [owner.__dict__[name] for owner, name in owners] == before


def lost_updates(seed: int, *, locked: bool) -> int:
    """Return how many updates two threads lose that read, yield, and write."""
    stage = Stage(seed, eagerness=1.0)
    lock, total = StageCondition(stage), 0

    def add() -> None:
        nonlocal total
        seen = total
        stage.pause()
        total = seen + 1

    def body() -> None:
        for _ in range(3):
            if locked:
                with lock:
                    add()
            else:
                add()

    stage.act("one", body)
    stage.act("two", body)
    assert stage.run() == []
    stage.clear()
    return 6 - total


def test_a_lock_keeps_others_out() -> None:
    """Interleaved threads lose updates without the lock and none with it."""
    assert any(lost_updates(seed, locked=False) for seed in range(8))
    assert not any(lost_updates(seed, locked=True) for seed in range(8))


def test_who_waits_for_ever_is_named() -> None:
    """A deadlock of threads is told apart from an idle worker."""
    stage = Stage(0, eagerness=0.5)
    StageWorker("idle", stage)
    stage.act("stuck", lambda: stage.pause(lambda: False))
    stage.act("done", lambda: None)
    assert stage.run() == ["stuck"]
    stage.clear()
    assert all(actor.done for actor in stage.actors)


def test_a_worker_ends_what_is_queued() -> None:
    """Closing a worker carries out its queue in order."""
    stage = Stage(0, eagerness=0.5)
    done: list[int] = []
    worker = StageWorker("worker", stage)

    def body() -> None:
        for number in range(3):
            worker.submit(partial(done.append, number))
        worker.close()

    stage.act("owner", body)
    assert stage.run() == []
    assert done == [0, 1, 2]
    stage.clear()
