"""A cache is closed while in use: callers get a clear refusal, and nothing stays open."""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.pools.caching import Tokens, group_of, sequences, turn
from tests.pools.forking import FORKS, in_child
from tests.pools.stored import cache_of

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.forks import left_to_parent
from hicache_dbg.pools.radix_input import encode
from hicache_dbg.pools.storage.files import FileStore
from hicache_dbg.pools.ticket import Load, LoadTicket
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


def test_a_prefetch_beside_the_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache is closed as a request begins: it is not queued for a worker that is gone."""
    cache = cache_of(FileStore(tmp_path))
    turn(cache, FIRST)

    def closed_meanwhile(tokens: Tokens) -> bytes:
        cache.close()
        return encode(tokens)

    monkeypatch.setattr("hicache_dbg.pools.storage.fetches.encode", closed_meanwhile)
    with pytest.raises(ValueError, match="was closed"):
        cache.prefetch(SECOND)
    assert not any(node.locks for node in cache.tree.nodes())


@pytest.mark.parametrize("stored", [False, True])
def test_a_prefetch_after_the_end_is_refused(tmp_path: Path, stored: bool) -> None:
    """With a storage tier or without one."""
    cache = cache_of(FileStore(tmp_path)) if stored else HiCacheController(group_of())
    cache.close()
    with pytest.raises(ValueError, match="was closed"):
        cache.prefetch(FIRST)


@FORKS
def test_a_forked_child_is_told_that_the_cache_is_its_parents() -> None:
    """It neither waits for workers that it lacks nor for a lock that a thread of the parent held."""
    engine = Held()
    cache = HiCacheController(group_of(), engine=engine)
    turn(cache, FIRST)
    cache.flush()
    cache.insert(SECOND, cache.alloc_device(2))
    assert engine.begun.wait(10)  # a copy that never ends in the child
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with cache._state.changed, cache._failures._lock:
            held.set()
            release.wait(30)

    other = threading.Thread(target=hold)
    other.start()
    assert held.wait(10)
    pages = np.arange(2)
    ticket = LoadTicket(pages, (Load(1, pages, pages, [0]),))
    told = in_child(
        lambda: cache.match(FIRST),
        lambda: cache.alloc_device(1),
        cache.flush,
        lambda: cache.wait_layer(0, ticket),
        cache.close,
    )
    release.set()
    engine.go_on.set()
    other.join(10)
    refused = (
        "ValueError: the cache belongs to the process that this one was forked from, as do its "
        "workers; open a new one here"
    )
    assert told == [*[refused] * 4, "None"]
    cache.unlock(cache.match(FIRST))  # the parent's goes on
    cache.flush()
    cache.check()
    cache.close()


@FORKS
@pytest.mark.parametrize("said", [4, 0])
def test_a_part_that_cannot_be_given_up_keeps_no_other_from_it(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, said: int
) -> None:
    """Each is told, and the failure is said if there is a standard error."""

    class Part:
        told = False

        def leave_to_parent(self) -> None:
            """Raise once told."""
            self.told = True
            raise OSError("no")

    parts = [Part() for _ in range(4)]
    for part in parts:
        left_to_parent(part)
    with monkeypatch.context() as patch:
        if not said:
            patch.setattr(sys, "stderr", None)
        told = in_child(lambda: [part.told for part in parts])
    assert told == ["[True, True, True, True]"]
    assert capfd.readouterr().err.count("keeps a part of its parent's Part: OSError: no") == said
