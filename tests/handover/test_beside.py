"""Work beside the engine: in order, waited for, and never waited for in vain."""

import threading
from functools import partial

import pytest

from hicache_dbg.tracer.attach.hicache_handover_beside import Beside, Job
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
