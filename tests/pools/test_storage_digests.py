"""Digests taken beside: every payload gets its own, whoever takes it, and nobody waits for nothing."""

import threading
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_dbg.pools.storage import digests as module
from hicache_dbg.pools.storage.digests import Digests, Job
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
    ahead=st.integers(0, 4),
)
def test_each_payload_has_the_digest_of_its_bytes(lengths: Lengths, ahead: int) -> None:
    """In their order and as they arrive, with a second thread and without."""
    payloads = _payloads(lengths)
    wanted = [xxhash.xxh3_64_intdigest(b"".join(payload)) for payload in payloads]
    digests = Digests(ahead)
    assert list(digests.in_order(payloads)) == wanted
    taken = [digests.of_arrived(payload) for payload in payloads]
    assert [one.result() if isinstance(one, Job) else one for one in taken] == wanted
    digests.close()


def test_a_second_thread_that_gets_nothing_done_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it has not begun its owner takes, and what it has no room for is taken at once."""
    go_on, own = threading.Event(), module.digest_of

    def slow(payload: module.Payload) -> int:
        if threading.current_thread() is not threading.main_thread():
            go_on.wait(10)
        return own(payload)

    monkeypatch.setattr(module, "digest_of", slow)
    payloads = _payloads([[8], [9], [10]])
    digests = Digests(2)
    first, second, third = map(digests.of_arrived, payloads)
    assert isinstance(first, Job)
    assert isinstance(second, Job)
    assert third == own(payloads[2])
    assert second.result() == own(payloads[1])
    assert isinstance(digests.of_arrived(payloads[1]), Job)  # its room is free again
    go_on.set()
    assert first.result() == own(payloads[0])
    digests.close()


def test_work_side_by_side_ends_in_order_and_stops_when_nobody_asks() -> None:
    """An error is raised in its turn, and afterwards no thread is at work."""
    threads: set[threading.Thread] = set()

    def work(number: int) -> int:
        threads.add(threading.current_thread())
        if number == 3:
            raise ValueError("planted")
        return number * number

    ends = side_by_side(work, range(100), 4)
    assert [next(ends) for _ in range(3)] == [0, 1, 4]
    with pytest.raises(ValueError, match="planted"):
        next(ends)
    assert threads
    assert not any(thread.is_alive() for thread in threads)
