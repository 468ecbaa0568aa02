"""Digests taken by helper threads: every payload gets its own, and nobody waits needlessly."""

import threading
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_dbg.pools.storage import digests as module
from hicache_dbg.pools.storage.digests import Digests
from hicache_dbg.pools.storage.side_by_side import side_by_side

Lengths = Sequence[Sequence[int]]


def _payloads(lengths: Lengths) -> list[list[memoryview]]:
    memory = np.random.default_rng(0).integers(0, 256, 1 << 12, np.uint8).data
    return [
        [memory[end - length : end] for end, length in zip(accumulate(row), row, strict=True)]
        for row in lengths
    ]


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=4), max_size=9),
    threads=st.integers(0, 3),
    backwards=st.booleans(),
)
def test_each_payload_has_the_digest_of_its_bytes(
    lengths: Lengths, threads: int, backwards: bool
) -> None:
    """This holds in any order, for repeated requests, with and without other threads."""
    payloads = _payloads(lengths)
    wanted = [xxhash.xxh3_64_intdigest(b"".join(payload)) for payload in payloads]
    digests = Digests(threads)
    jobs = [digests.begin(payload) for payload in payloads]
    for job in reversed(jobs) if backwards else jobs:
        job.result()
    assert [job.result() for job in jobs] == wanted
    digests.close()


def test_a_second_thread_that_gets_nothing_done_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it has not begun is digested by the owner."""
    begun, go_on, own = threading.Event(), threading.Event(), module.digest_of

    def slow(payload: module.Payload) -> int:
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            go_on.wait(10)
        return own(payload)

    monkeypatch.setattr(module, "digest_of", slow)
    payloads = _payloads([[8], [9], [10]])
    digests = Digests(1)
    first, second, third = map(digests.begin, payloads)
    assert begun.wait(10)
    assert third.result() == own(payloads[2])
    assert second.result() == own(payloads[1])
    go_on.set()
    assert first.result() == own(payloads[0])
    digests.close()


@pytest.mark.parametrize("threads", [1, 2, 4, 200])
def test_work_side_by_side_ends_in_order(threads: int) -> None:
    """This holds for one thread and for more threads than work; the caller is one of them."""
    workers: set[threading.Thread] = set()

    def work(number: int) -> int:
        workers.add(threading.current_thread())
        return number * number

    assert side_by_side(work, range(100), threads) == [number * number for number in range(100)]
    assert side_by_side(work, [], threads) == []
    assert len(workers) <= threads
    assert not any(worker.is_alive() for worker in workers - {threading.current_thread()})


def test_work_side_by_side_of_fewer_threads_than_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that was started before another could not be is waited for: it writes to the pages."""
    own, started = threading.Thread.start, list[threading.Thread]()
    begun, go_on = threading.Event(), threading.Event()

    def start(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        own(thread)
        assert begun.wait(10)

    def work(number: int) -> int:
        if threading.current_thread() in started:
            begun.set()
            go_on.wait(10)
        elif number == 99:
            go_on.set()
        return number

    monkeypatch.setattr(threading.Thread, "start", start)
    assert side_by_side(work, range(100), 4) == list(range(100))
    assert not started[0].is_alive()


def test_work_side_by_side_stops_at_an_error() -> None:
    """It is raised once all threads have stopped, and nothing was begun after it."""
    workers: set[threading.Thread] = set()
    begun: list[int] = []

    def work(number: int) -> None:
        workers.add(threading.current_thread())
        begun.append(number)
        if number == 3:
            raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        side_by_side(work, range(10_000), 4)
    assert len(begun) < 10_000
    assert not any(worker.is_alive() for worker in workers - {threading.current_thread()})
