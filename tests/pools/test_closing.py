"""A cache is closed while in use: callers get a clear refusal, and nothing stays open."""

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from tests.pools.caching import group_of, sequences, turn

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.transfer import CopyOp, TransferEngine

FIRST, SECOND = sequences([[0, 1], [2, 3]])


class Held(TransferEngine):
    """An engine whose second backup waits until released."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def backup(self, op: CopyOp) -> None:
        """Copy once released."""
        if op.op_id > 1:
            self.begun.set()
            self.go_on.wait(60)
        super().backup(op)


def until(holds: Callable[[], bool]) -> None:
    """Wait for something that another thread is about to do."""
    deadline, pause = time.monotonic() + 10, threading.Event()
    while not holds():
        assert time.monotonic() < deadline
        pause.wait(0.001)


def test_what_is_evicted_after_the_end_is_not_written_back() -> None:
    """A reader in the middle of its turn still gets room, without another copy."""
    cache = HiCacheController(group_of(device_pages=2), policy="write_back")
    turn(cache, FIRST)
    cache.close()
    cache.alloc_device(2)
    assert cache.stats.backups == 0
    cache.check()


def test_a_reader_that_waits_for_room_is_told_of_the_end() -> None:
    """Its load is refused instead of queued for workers that are gone, and keeps no pages."""
    engine, told = Held(), list[BaseException]()
    cache = HiCacheController(group_of(device_pages=2), engine=engine)
    turn(cache, FIRST)
    cache.flush()
    cache.insert(SECOND, cache.alloc_device(2))
    assert engine.begun.wait(10)
    match = cache.match(FIRST)
    state = cache._state

    def load() -> None:
        try:
            cache.load_back(match)
        except ValueError as error:
            told.append(error)

    reader = threading.Thread(target=load)
    closer = threading.Thread(target=cache.close)
    with state.changed:  # the reader waits for room before the cache is closed
        reader.start()
    until(lambda: bool(vars(state.changed)["_waiters"]))
    closer.start()
    until(lambda: state.closed)
    engine.go_on.set()
    reader.join(10)
    closer.join(10)
    with pytest.raises(ValueError, match="was closed"):
        raise told[0]
    cache.unlock(match)
    assert not any(
        allocator.readers(np.arange(allocator.pages)).any()
        for allocator in cache.allocators.values()
    )
