"""The file store reads large pages from the page cache itself, and from disk with several threads."""

import os
from pathlib import Path

import numpy as np
import pytest
from tests.pools.stored import Bench

from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.storage import engine as engine_module
from hicache_dbg.pools.storage import file_io, files
from hicache_dbg.pools.storage import idle as idle_module
from hicache_dbg.pools.storage.files import FileStore
from hicache_dbg.pools.storage.idle import idle_cores
from hicache_dbg.pools.storage.results import PageState

ONE_PAGE = np.zeros(1, np.int64), np.ones(1, np.uint32)


@pytest.mark.parametrize("layout", [Layout.PAGE_FIRST, Layout.LAYER_FIRST])
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("idle", [0, 2])
def test_large_pages_end_in_their_order_from_memory_and_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool, idle: int, layout: Layout
) -> None:
    """Each page has its own bytes and outcome, even if one is missing, short or damaged."""
    monkeypatch.setattr(engine_module, "BESIDE_BYTES", 0)
    monkeypatch.setattr(files, "LARGE_BYTES", 0)
    monkeypatch.setattr(files, "OPEN_AT_ONCE", 3)
    monkeypatch.setattr(files, "idle_cores", lambda: idle)
    monkeypatch.setattr(file_io, "CACHED_STEP_BYTES", 1000)
    monkeypatch.setattr(file_io, "DISK_STEP_BYTES", 1000)
    if not cached:
        monkeypatch.setattr(files, "begins_in_memory", lambda _descriptor, _record: idle > 0)
        monkeypatch.setattr(files, "read_cached", lambda _descriptor, _record: None)
    store = FileStore(tmp_path)
    bench = Bench(store, layout=layout)
    before = [bench.page(page) for page in range(8)]
    bench.store(8)
    places = [store.path(key.name) for key in bench.keys]
    places[5].unlink()
    os.truncate(places[3], places[3].stat().st_size - 1)
    raw = bytearray(places[1].read_bytes())
    raw[-1] ^= 1
    places[1].write_bytes(raw)
    bad = {1: PageState.DAMAGED, 3: PageState.SHORT, 5: PageState.MISSING}
    assert bench.fetch(8) == [bad.get(page, PageState.OK) for page in range(8)]
    for page in {*range(8)} - bad.keys():
        assert bench.page(page) == before[page]


def test_idle_cores_are_those_that_no_thread_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four cores, with one running thread and with nine; none if the kernel does not say."""
    place = tmp_path / "loadavg"
    monkeypatch.setattr(idle_module, "_LOAD", str(place))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert idle_cores() == 0
    for text, cores in (("0.1 0.2 0.3 1/90 7\n", 3), ("8.1 7.2 7.3 9/90 7\n", 0), ("0.1\n", 0)):
        place.write_text(text)
        assert idle_cores() == cores


@pytest.mark.parametrize("idle", [0, 2])
def test_files_that_are_in_memory_in_part_come_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle: int
) -> None:
    """A read that would block is restarted on another thread, and no file is left open."""
    bench = Bench(FileStore(tmp_path))
    before = [bench.page(page) for page in range(8)]
    bench.store(8)
    monkeypatch.setattr(files, "LARGE_BYTES", 0)
    monkeypatch.setattr(files, "idle_cores", lambda: idle)
    monkeypatch.setattr(file_io, "CACHED_STEP_BYTES", 100)
    own, reads = os.preadv, list[int]()

    def preadv(descriptor: int, pieces: list[memoryview], at: int, flags: int) -> int:
        reads.append(flags)
        if flags and at and len(reads) > 10:
            raise BlockingIOError
        return own(descriptor, pieces, at, flags)

    monkeypatch.setattr(os, "preadv", preadv)
    opened = len([*Path("/proc/self/fd").iterdir()])
    assert bench.fetch(8) == [PageState.OK] * 8
    assert [bench.page(page) for page in range(8)] == before
    assert len([*Path("/proc/self/fd").iterdir()]) == opened
    assert {0, os.RWF_NOWAIT} == set(reads)


def test_a_file_that_is_not_all_in_memory_is_left_to_the_disks_readers(tmp_path: Path) -> None:
    """An uncached file does not block the caller; if the file system cannot drop it, it is read."""
    store = FileStore(tmp_path)
    bench = Bench(store)
    bench.store(1)
    place = store.path(bench.keys[0].name)
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        (record,) = bench.engine._records(bench.engine.op("fetch", bench.keys[:1], *ONE_PAGE))
        got = file_io.read_cached(descriptor, record)
    finally:
        os.close(descriptor)
    assert got in {None, place.stat().st_size}
    assert bench.fetch(1) == [PageState.OK]
