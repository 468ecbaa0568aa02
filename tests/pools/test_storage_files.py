"""The file store returns exactly what was put; anything else is a miss with a reason."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pools.forking import FORKS, in_child
from tests.pools.stored import OURS, Bench, files_of

from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.storage import engine as engine_module
from hicache_dbg.pools.storage import file_io, files
from hicache_dbg.pools.storage import reserve as reserve_module
from hicache_dbg.pools.storage.files import FileStore
from hicache_dbg.pools.storage.header import HEADER_BYTES, MAGIC, PRELUDE, Header
from hicache_dbg.pools.storage.keys import Identity
from hicache_dbg.pools.storage.partials import Partial
from hicache_dbg.pools.storage.reserve import reserve
from hicache_dbg.pools.storage.results import PageState
from hicache_dbg.pools.storage.store import Record
from hicache_dbg.pools.storage.write_back import WriteBack


@pytest.mark.parametrize(
    "layout", [Layout.LAYER_FIRST, Layout.PAGE_FIRST, Layout.PAGE_FIRST_DIRECT]
)
def test_what_was_put_comes_back_to_another_process_life(tmp_path: Path, layout: Layout) -> None:
    """A store reopened over the folder returns every byte of every pool."""
    bench = Bench(FileStore(tmp_path), layout=layout)
    before = [bench.page(page) for page in range(8)]
    bench.store(8)
    again = Bench(FileStore(tmp_path), layout=layout)
    assert again.fetch(8) == [PageState.OK] * 8
    assert [again.page(page) for page in range(8)] == before


@settings(max_examples=60, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_a_miss_or_harmless(where: float, bit: int) -> None:
    """A file with a flipped bit is refused, unless the bit is in the header's padding."""
    with TemporaryDirectory() as folder:
        bench = Bench(FileStore(folder), pages=1)
        right = bench.page(0)
        bench.store(1)
        (place,) = files_of(Path(folder))
        raw = bytearray(place.read_bytes())
        at = int(where * len(raw))
        raw[at] ^= 1 << bit
        place.write_bytes(raw)
        (state,) = bench.fetch(1)
        if state is PageState.OK:
            assert at < HEADER_BYTES
            assert bench.page(0) == right
        else:
            assert state is PageState.DAMAGED
            assert not place.exists()  # it makes room for a good one


@settings(max_examples=30, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_short(share: float) -> None:
    """A truncated file is a miss that says so, at any length."""
    with TemporaryDirectory() as folder:
        bench = Bench(FileStore(folder), pages=1)
        bench.store(1)
        (place,) = files_of(Path(folder))
        os.truncate(place, int(share * place.stat().st_size))
        assert bench.fetch(1) == [PageState.SHORT]


def test_another_writers_file_is_foreign(tmp_path: Path) -> None:
    """A valid record of another page under this name is refused for its key."""
    bench = Bench(FileStore(tmp_path))
    bench.store(2)
    one, other = (bench.engine.backend.path(key.name) for key in bench.keys[:2])  # type: ignore[attr-defined]
    other.write_bytes(one.read_bytes())
    assert bench.fetch(2) == [PageState.OK, PageState.FOREIGN]


@pytest.mark.parametrize(
    ("change", "state"),
    [
        (Identity("model", "salt"), PageState.MISSING),
        (Identity("another"), PageState.MISSING),
        (Identity("model", rank=1), PageState.MISSING),
        (OURS, PageState.OK),
    ],
)
def test_pages_of_another_identity_are_not_found(
    tmp_path: Path, change: Identity, state: PageState
) -> None:
    """Model, namespace and rank are part of the name: equal tokens alone are no hit."""
    Bench(FileStore(tmp_path)).store(1)
    assert Bench(FileStore(tmp_path), change).fetch(1) == [state]


def test_a_page_of_another_layout_is_refused(tmp_path: Path) -> None:
    """Bytes in another layout have the same name and length, but a different header."""
    Bench(FileStore(tmp_path)).store(1)
    other = Bench(FileStore(tmp_path), layout=Layout.LAYER_FIRST)
    assert other.fetch(1) == [PageState.MISKEYED]


def test_a_page_of_another_version_is_refused_and_stays(tmp_path: Path) -> None:
    """Whatever its header holds besides: two versions may share a folder."""
    bench = Bench(FileStore(tmp_path), pages=1)
    bench.store(1)
    (place,) = files_of(tmp_path)
    body = msgspec.json.encode({"format": 2, "all": "else"})
    prelude = PRELUDE.pack(MAGIC, len(body), xxhash.xxh3_64_intdigest(body))
    place.write_bytes((prelude + body).ljust(HEADER_BYTES, b"\0") + b"payload")
    assert bench.fetch(1) == [PageState.MISKEYED]
    assert files_of(tmp_path) == [place]


def test_a_name_for_other_tokens_is_refused(tmp_path: Path) -> None:
    """If a hash collides, the second digest of the tokens differs."""
    bench = Bench(FileStore(tmp_path))
    bench.store(1)
    asked = bench.keys[0]._replace(tokens=bench.keys[0].tokens ^ 1)
    assert bench.fetch(1, [asked]) == [PageState.MISKEYED]


def test_the_oldest_pages_make_room(tmp_path: Path) -> None:
    """The bound holds on disk and across a restart, and the latest pages are kept."""
    size = Bench(FileStore(tmp_path / "one")).engine.image.page_bytes + HEADER_BYTES
    store = FileStore(tmp_path / "two", max_bytes=3 * size)
    bench = Bench(store)
    bench.store(8)
    assert store.nbytes == 3 * size == sum(p.stat().st_size for p in files_of(tmp_path / "two"))
    assert store.evicted == 5
    kept = [PageState.MISSING] * 5 + [PageState.OK] * 3
    assert bench.fetch(8) == kept
    assert FileStore(tmp_path / "two", max_bytes=size).nbytes == size


WRITER = """
import sys
from hicache_dbg.pools.storage.partials import Partial
unfinished = Partial(sys.argv[1])
print("begun", flush=True)
sys.stdin.read()
"""


def test_a_dead_writers_unfinished_file_is_removed_and_a_living_ones_is_not(tmp_path: Path) -> None:
    """This works across containers: the kernel releases the writer's lock at its exit."""
    FileStore(tmp_path)
    name = "0" * 32
    place = tmp_path / "0" / f"{name}.page"
    command = [sys.executable, "-c", WRITER, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        (left,) = tmp_path.glob("0/*.partial")
        with Partial(str(place)):
            FileStore(tmp_path)
            assert len(list(tmp_path.glob("0/*.partial"))) == 2
        writer.kill()
        writer.wait()
        assert left.exists()
        store = FileStore(tmp_path)
    assert not left.exists()
    assert store.exists([name]) == [False]


def test_a_file_taken_for_abandoned_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may check between the file's creation and its lock."""
    own, taken = fcntl.flock, list[Path]()

    def lock(descriptor: int, operation: int) -> None:
        if not taken:
            taken.extend(tmp_path.glob("*.partial"))
            taken[0].unlink()
        own(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock)
    with Partial(str(tmp_path / "one.page")) as unfinished:
        unfinished.move()
    assert [place.name for place in tmp_path.iterdir()] == ["one.page"]


@FORKS
def test_a_forked_child_stores_and_fetches_beside_its_parent(tmp_path: Path) -> None:
    """Its lock is its own, whoever held the parent's, and so are its unfinished files."""
    store = FileStore(tmp_path)
    bench = Bench(store)
    bench.store(2)
    with store._lock, Partial(str(tmp_path / "0" / "one.page")) as ours:
        told = in_child(
            lambda: {end.state.value for end in bench.store(8).results},
            lambda: set(bench.fetch(8)),
            lambda: Partial(str(tmp_path / "0" / "one.page"))._name == ours._name,
        )
    assert told == ["{'ok'}", "{<PageState.OK: 'ok'>}", "False"]
    assert bench.fetch(8) == [PageState.OK] * 8


def test_a_full_disk_lets_the_oldest_pages_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The missing space is evicted once and the write retried; evicted pages are counted."""
    store = FileStore(tmp_path)
    bench = Bench(store)
    size = bench.engine.image.page_bytes + HEADER_BYTES
    own = os.pwritev

    def write(descriptor: int, pieces: list[memoryview], at: int) -> int:
        if sum(place.stat().st_size for place in files_of(tmp_path)) > 2 * size:
            raise OSError(errno.ENOSPC, "No space left on device")
        return own(descriptor, pieces, at)

    monkeypatch.setattr(os, "pwritev", write)
    assert {end.state for end in bench.store(6).results} == {PageState.OK}
    assert store.evicted == 3
    assert bench.fetch(6) == [PageState.MISSING] * 3 + [PageState.OK] * 3
    assert not list(tmp_path.glob("?/*.partial"))


def test_a_disk_that_stays_full_is_a_failure_with_its_errno(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If others fill the disk, each attempted write costs at most one page."""
    store = FileStore(tmp_path)
    bench = Bench(store)
    bench.store(3)

    def full(_descriptor: int, _pieces: list[memoryview], _at: int) -> int:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "pwritev", full)
    keys = bench.keys[3:5]
    ends = bench._done("store", keys, np.arange(2)).results
    assert [(end.state, end.errno) for end in ends] == [(PageState.FAILED, errno.EDQUOT)] * 2
    assert store.evicted == 2


def test_an_error_of_the_disk_is_in_the_result(tmp_path: Path) -> None:
    """A failed read or write returns the errno, and no partial file remains."""
    bench = Bench(FileStore(tmp_path))
    name = bench.keys[0].name
    folder = tmp_path / name[0]
    folder.rmdir()
    folder.write_bytes(b"no folder")
    (result,) = bench.store(1).results
    assert (result.state, result.errno) == (PageState.FAILED, 20)  # ENOTDIR
    assert bench.fetch(1) == [PageState.FAILED]
    assert not list(tmp_path.glob("**/*.partial"))


def test_a_file_put_by_another_process_is_found(tmp_path: Path) -> None:
    """Two stores over one folder see each other's pages."""
    ours, theirs = FileStore(tmp_path), FileStore(tmp_path)
    bench = Bench(theirs)
    bench.store(1)
    assert ours.exists([key.name for key in bench.keys[:2]]) == [True, False]


def test_room_is_reserved_for_a_file_that_stays_as_short_as_what_is_written(tmp_path: Path) -> None:
    """After a power cut the file is too short, instead of full length with zeros."""
    with (tmp_path / "one").open("wb", buffering=0) as file:
        reserve(file.fileno(), 1 << 20)
        facts = os.fstat(file.fileno())
    assert facts.st_size == 0
    assert facts.st_blocks == 0 or facts.st_blocks * 512 >= 1 << 20


def test_where_no_room_can_be_reserved_the_file_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the system call, or without the space, the write itself succeeds or fails."""
    reserve(-1, 1 << 20)
    monkeypatch.setattr(reserve_module, "_fallocate", lambda: None)
    monkeypatch.setattr(files, "LARGE_BYTES", 0)
    bench = Bench(FileStore(tmp_path))
    assert {end.state for end in bench.store(2).results} == {PageState.OK}
    assert bench.fetch(2) == [PageState.OK] * 2


@pytest.mark.parametrize("large", [False, True])
def test_what_is_no_file_is_a_miss_and_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """A pipe or a folder under a page's name is a miss, and the next page is read."""
    monkeypatch.setattr(files, "LARGE_BYTES", 0 if large else 1 << 20)
    store = FileStore(tmp_path)
    bench = Bench(store)
    bench.store(3)
    pipe, folder, _ = (store.path(key.name) for key in bench.keys[:3])
    pipe.unlink()
    os.mkfifo(pipe)
    folder.unlink()
    folder.mkdir()
    first, second, third = bench.fetch(3)
    assert first in {PageState.SHORT, PageState.FAILED}
    assert (second, third) == (PageState.FAILED, PageState.OK)


def test_a_page_that_another_process_removed_is_put_again(tmp_path: Path) -> None:
    """The index is checked against the disk: a page that is gone is no hit, and is stored again."""
    store = FileStore(tmp_path)
    bench = Bench(store)
    bench.store(2)
    for place in files_of(tmp_path):
        place.unlink()
    assert store.exists([key.name for key in bench.keys[:2]]) == [False, False]
    bench.store(2)
    assert bench.fetch(2) == [PageState.OK] * 2


def test_a_page_that_is_evicted_while_it_is_read_is_not_known_of_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes were good, and the next reader gets a miss."""
    store = FileStore(tmp_path)
    bench = Bench(store)
    bench.store(1)
    own = file_io.read_at_once

    def read(descriptor: int, record: Record) -> int:
        store._make_room(store.max_bytes)
        return own(descriptor, record)

    monkeypatch.setattr(files, "read_at_once", read)
    assert bench.fetch(1) == [PageState.OK]
    assert store.nbytes == 0
    assert store._sizes == {}


def test_a_header_whose_digest_is_no_number_is_damaged(tmp_path: Path) -> None:
    """A bad record is one miss: the pages beside it are read."""
    bench = Bench(FileStore(tmp_path))
    bench.store(2)
    place = bench.engine.backend.path(bench.keys[0].name)  # type: ignore[attr-defined]
    raw = place.read_bytes()
    header = msgspec.structs.replace(Header.decode(raw), digest="none")
    place.write_bytes(header.encode() + raw[HEADER_BYTES:])
    assert bench.fetch(2) == [PageState.DAMAGED, PageState.OK]


def test_two_stores_of_one_process_may_write_one_page_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their temporary files have different names."""
    ours, theirs = (Bench(FileStore(tmp_path)) for _ in range(2))
    own, ends = file_io.write_all, list[PageState]()

    def write(descriptor: int, pieces: list[memoryview], at: int) -> None:
        own(descriptor, pieces, at)
        if not ends:
            ends.append(PageState.FAILED)
            ends[:] = [end.state for end in theirs.store(1).results]

    monkeypatch.setattr(files, "write_all", write)
    assert [end.state for end in ours.store(1).results] == [PageState.OK]
    assert ends == [PageState.OK]


def test_a_large_file_begins_its_way_to_the_disk_and_its_descriptor_is_given_back(
    tmp_path: Path,
) -> None:
    """Another thread starts the write-back after its writer has closed the file."""
    place, begun = tmp_path / "one.page", list[int]()
    came, closed = Event(), Event()

    def begin(descriptor: int, *_range: int) -> int:
        begun.extend((descriptor, os.fstat(descriptor).st_ino))
        came.set()
        closed.wait(10)
        return 0

    writing = WriteBack()
    writing._begin = begin
    with place.open("wb") as file:
        writing.begin(file.fileno())
        assert came.wait(10)
    assert begun[1] == place.stat().st_ino
    closed.set()
    for _ in range(1000):
        try:
            os.fstat(begun[0])
        except OSError:
            return
        Event().wait(0.01)
    pytest.fail("the descriptor was not closed within 10 s")


def test_a_disk_that_does_not_keep_up_takes_no_more_descriptors(tmp_path: Path) -> None:
    """The call that starts a write-back waits too, and every file behind it would stay open."""
    came, go_on = Event(), Event()

    def begin(*_: int) -> int:
        came.set()
        go_on.wait(10)
        return 0

    writing = WriteBack()
    writing._begin = begin
    with (tmp_path / "one.page").open("wb") as file:
        writing.begin(file.fileno())
        assert came.wait(10)
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(500):
            writing.begin(file.fileno())
        assert len(list(Path("/proc/self/fd").iterdir())) - before <= 64
    go_on.set()


def test_a_store_that_finds_no_thread_to_start_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container bounds its threads: pages are hashed, read and written by the caller."""
    monkeypatch.setattr(engine_module, "BESIDE_BYTES", 0)
    monkeypatch.setattr(files, "LARGE_BYTES", 0)
    monkeypatch.setattr(files, "begins_in_memory", lambda _descriptor, _record: False)

    def start(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", start)
    bench = Bench(FileStore(tmp_path))
    assert {end.state for end in bench.store(8).results} == {PageState.OK}
    assert bench.fetch(8) == [PageState.OK] * 8
