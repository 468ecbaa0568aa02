"""Pools that one cache had and another has now: what the first left behind accuses nobody."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.pools.caching import P, group_of, sequences, turn, write
from tests.pools.stored import cache_of, tier_of

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.storage.files import FileStore
from hicache_dbg.tracer.events import Copied, Finding
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

FIRST, SECOND = sequences([[0, 1], [2, 3]])


@pytest.fixture
def traced() -> Iterator[tuple[Runtime, MemorySink]]:
    """A run whose backups are read again by the bus."""
    sink = MemorySink()
    with Runtime.start(Settings(gate=Gate.ON, checksum=Checksum.ENDS), sinks=[sink]) as runtime:
        yield runtime, sink


def test_pages_that_come_from_a_store_are_not_held_against_the_cache_before(
    traced: tuple[Runtime, MemorySink], tmp_path: Path
) -> None:
    """Both caches begin with host page 0 in its first life: its bytes are the second one's now."""
    runtime, sink = traced
    store = FileStore(tmp_path)
    with cache_of(store) as other:
        turn(other, SECOND)
        other.flush()
    group = group_of()
    with HiCacheController(group) as before:
        turn(before, FIRST)
    with HiCacheController(group, storage=tier_of(store)) as now:
        assert now.prefetch(SECOND) == 2
        turn(now, SECOND)
    assert runtime.flush()
    assert [found.message for found in sink.of(Finding)] == []
    assert any(copy.verified for copy in sink.of(Copied) if copy.op == "load")


def test_a_backup_that_is_read_late_is_not_held_against_the_cache_after(
    traced: tuple[Runtime, MemorySink],
) -> None:
    """The bus comes to a page when the next cache has written it: it counts as written again."""
    runtime, sink = traced
    group, held = group_of(), threading.Event()
    with HiCacheController(group) as before:
        runtime.session.check(lambda: [] if held.wait(10.0) else pytest.fail("it never came"))
        turn(before, FIRST)
    with HiCacheController(group) as now:
        pages = now.alloc_device(SECOND.size // P)
        write(group, SECOND, pages)
        now.insert(SECOND, np.asarray(pages))
        now.flush()
        held.set()
    assert runtime.flush()
    assert [found.message for found in sink.of(Finding)] == []
