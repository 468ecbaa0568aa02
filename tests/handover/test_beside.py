"""Work beside the engine: in order, waited for, and never waited for in vain."""

import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.pools.forking import FORKS, held, in_child

from hicache_dbg.tracer.attach.hicache_handover_beside import Beside, Job
from hicache_dbg.tracer.attach.hicache_handover_held import HeldPages
from hicache_dbg.tracer.selfcheck import InternalErrors


def test_what_was_given_before_the_stop_is_done_in_order_and_the_rest_is_dropped() -> None:
    """Nobody hangs on either; start and stop may be said twice."""
    beside, done = Beside(InternalErrors()), list[int]()
    beside.start()
    beside.start()
    jobs = [Job(partial(done.append, at)) for at in range(9)]
    for job in jobs[:8]:
        beside.give(job)
    beside.stop()
    beside.stop()
    beside.give(jobs[8])
    for job in jobs:
        job.wait()
    assert done == [*range(8)]
    assert all(job.over for job in jobs)


def test_a_job_that_fails_is_over_and_the_next_is_done(internal_errors: list[str]) -> None:
    """It is counted as a failure of ours."""
    errors, done = InternalErrors(), threading.Event()
    beside = Beside(errors)
    beside.start()
    failed = Job(lambda: 1 / 0)
    beside.give(failed)
    beside.give(Job(done.set))
    beside.settle()
    beside.stop()
    failed.wait()
    assert done.is_set()
    assert errors.counts() == {"handover/beside": 1}
    internal_errors.clear()


def test_a_wait_ends_after_its_time() -> None:
    """For a job that nobody does."""
    job = Job(lambda: None)
    job.wait(0.01)
    assert not job.over


def test_a_thread_that_dies_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, internal_errors: list[str]
) -> None:
    """What it had before it is dropped."""
    monkeypatch.setattr(threading, "excepthook", lambda _args: None)
    go_on = threading.Event()
    beside = Beside(InternalErrors())
    beside.start()
    thread = beside._thread
    assert thread is not None

    def dies() -> None:
        go_on.wait(10)
        raise SystemExit

    beside.give(Job(dies))
    left = Job(lambda: None)
    beside.give(left)
    go_on.set()
    left.wait(10)
    assert left.over
    thread.join(10)
    beside.stop()
    assert internal_errors == ["handover/beside: SystemExit: "]
    internal_errors.clear()


@pytest.mark.parametrize("ends", ["not busy", "too late", "wanted"])
def test_a_job_gives_way_until_its_reason_ends(ends: str) -> None:
    """Nothing is busy any more, its time is over, or somebody waits for it."""
    job, looks = Job(lambda: None), list[bool]()

    def busy() -> bool:
        looks.append(True)
        if ends == "wanted":
            job.wait(0.0)
        return ends != "not busy" or len(looks) < 3

    job.give_way(busy, 0.005 if ends == "too late" else 60.0)
    assert len(looks) >= {"not busy": 3, "too late": 1, "wanted": 1}[ends]


@FORKS
@pytest.mark.parametrize("runs", [True, False])
def test_a_forked_child_has_its_own_thread_and_none_of_its_parents_jobs(runs: bool) -> None:
    """Whatever its parent's threads held or had yet to do; a thread that did not run stays away."""
    go_on, done = threading.Event(), list[str]()
    beside = Beside(InternalErrors())
    if runs:
        beside.start()
        beside.give(Job(lambda: go_on.wait(60)))
        beside.give(Job(lambda: done.append("one of theirs")))

    def child() -> str:
        job = Job(lambda: done.append("one of ours"))
        beside.give(job)
        job.wait(10)
        beside.settle()
        beside.stop()
        return f"{job.over} {done}"

    with held(beside._giving):
        said = in_child(child)
    go_on.set()
    beside.stop()
    assert said == ["True ['one of ours']" if runs else "True []"]
    assert done == (["one of theirs"] if runs else [])


@FORKS
def test_a_forked_child_frees_pages_without_waiting_for_its_parents_digests() -> None:
    """Nobody there takes them, and whoever held the lock is not there either."""
    pages: Any = SimpleNamespace(generation=None, state=None, pages=np.arange(4))
    held_pages, job = HeldPages(), Job(lambda: None)
    held_pages.hold(pages, pages, job)

    def child() -> bool:
        held_pages.freed(None, np.arange(2))  # type: ignore[arg-type]
        return job._wanted

    with held(held_pages._lock):
        assert in_child(child) == ["False"]
    job.drop()
