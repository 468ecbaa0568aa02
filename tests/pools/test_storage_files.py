"""The file store: what was put comes back byte for byte, and anything else is a miss with a reason."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pools.stored import OURS, Bench, files_of

from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.storage import files
from hicache_dbg.pools.storage.files import LIFE, FileStore
from hicache_dbg.pools.storage.header import HEADER_BYTES, Header
from hicache_dbg.pools.storage.keys import Identity
from hicache_dbg.pools.storage.results import PageState


@pytest.mark.parametrize(
    "layout", [Layout.LAYER_FIRST, Layout.PAGE_FIRST, Layout.PAGE_FIRST_DIRECT]
)
def test_what_was_put_comes_back_to_another_process_life(tmp_path: Path, layout: Layout) -> None:
    """A store opened anew over the folder gives every byte of every pool back."""
    bench = Bench(FileStore(tmp_path), layout=layout)
    before = [bench.page(page) for page in range(8)]
    bench.store(8)
    again = Bench(FileStore(tmp_path), layout=layout)
    assert again.fetch(8) == [PageState.OK] * 8
    assert [again.page(page) for page in range(8)] == before


@settings(max_examples=60, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_a_miss_or_harmless(where: float, bit: int) -> None:
    """A bit flipped anywhere in a file is refused; only padding of the header may change unseen."""
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
    """However much of a file is missing, it is a miss that says so."""
    with TemporaryDirectory() as folder:
        bench = Bench(FileStore(folder), pages=1)
        bench.store(1)
        (place,) = files_of(Path(folder))
        os.truncate(place, int(share * place.stat().st_size))
        assert bench.fetch(1) == [PageState.SHORT]


def test_another_writers_file_is_foreign(tmp_path: Path) -> None:
    """A good record of another page under this name is refused for its key."""
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
    """Bytes in another order have the same name and length, and a header that tells."""
    Bench(FileStore(tmp_path)).store(1)
    other = Bench(FileStore(tmp_path), layout=Layout.LAYER_FIRST)
    assert other.fetch(1) == [PageState.MISKEYED]


def test_a_name_for_other_tokens_is_refused(tmp_path: Path) -> None:
    """Where a hash collides, the second digest of the tokens does not."""
    bench = Bench(FileStore(tmp_path))
    bench.store(1)
    asked = bench.keys[0]._replace(tokens=bench.keys[0].tokens ^ 1)
    assert bench.fetch(1, [asked]) == [PageState.MISKEYED]


def test_the_oldest_pages_make_room(tmp_path: Path) -> None:
    """The bound holds on the disk, across a restart, and the latest pages are the ones kept."""
    size = Bench(FileStore(tmp_path / "one")).engine.image.page_bytes + HEADER_BYTES
    store = FileStore(tmp_path / "two", max_bytes=3 * size)
    bench = Bench(store)
    bench.store(8)
    assert store.nbytes == 3 * size == sum(p.stat().st_size for p in files_of(tmp_path / "two"))
    assert store.evicted == 5
    kept = [PageState.MISSING] * 5 + [PageState.OK] * 3
    assert bench.fetch(8) == kept
    assert FileStore(tmp_path / "two", max_bytes=size).nbytes == size


def test_what_a_dead_writer_left_is_removed_and_never_read(tmp_path: Path) -> None:
    """A partial file is no page, whoever left it; a living writer's is left alone."""
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    FileStore(tmp_path)
    name = "0" * 32
    writers = {
        f"{LIFE}.{int(dead.stdout)}": False,
        f"{LIFE}.{os.getpid()}": True,
        f"0badcafe.{os.getpid()}": False,  # the same number in an earlier life of a container
    }
    places = [tmp_path / "0" / f"{name}.page.{writer}.0.partial" for writer in writers]
    for place in places:
        place.write_bytes(b"half")
    store = FileStore(tmp_path)
    assert [place.exists() for place in places] == list(writers.values())
    assert store.exists([name]) == [False]


def test_an_error_of_the_disk_is_in_the_result(tmp_path: Path) -> None:
    """What cannot be written or read ends with the errno, and nothing half done stays."""
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
    """Two stores over one folder answer for each other's pages."""
    ours, theirs = FileStore(tmp_path), FileStore(tmp_path)
    bench = Bench(theirs)
    bench.store(1)
    assert ours.exists([key.name for key in bench.keys[:2]]) == [True, False]


def test_pages_read_two_at_a_time_end_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large pages are read by two threads: bytes and ends are each page's own, also where one is missing."""
    monkeypatch.setattr("hicache_dbg.pools.storage.files.TWO_AT_A_TIME_BYTES", 0)
    store = FileStore(tmp_path)
    bench = Bench(store)
    before = [bench.page(page) for page in range(8)]
    bench.store(8)
    store.path(bench.keys[5].name).unlink()
    ends = bench.fetch(8)
    assert ends == [PageState.OK] * 5 + [PageState.MISSING] + [PageState.OK] * 2
    for page in {*range(8)} - {5}:
        assert bench.page(page) == before[page]


def test_a_page_that_another_process_removed_is_put_again(tmp_path: Path) -> None:
    """What the book says is there is looked for: a page gone meanwhile is no hit, and not left out."""
    store = FileStore(tmp_path)
    bench = Bench(store)
    bench.store(2)
    for place in files_of(tmp_path):
        place.unlink()
    assert store.exists([key.name for key in bench.keys[:2]]) == [False, False]
    bench.store(2)
    assert bench.fetch(2) == [PageState.OK] * 2


def test_an_earlier_life_with_the_same_number_is_in_nobodys_way(tmp_path: Path) -> None:
    """In a container every life has the same process number: what one left does not stop the next."""
    FileStore(tmp_path)
    bench = Bench(FileStore(tmp_path / "other"))
    name = bench.keys[0].name
    (tmp_path / name[0] / f"{name}.page.{os.getpid()}.0.partial").write_bytes(b"half")
    assert [end.state for end in Bench(FileStore(tmp_path)).store(1).results] == [PageState.OK]


def test_a_page_that_is_evicted_while_it_is_read_is_not_known_of_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes were good, and the next reader is told that it is gone."""
    store = FileStore(tmp_path)
    bench = Bench(store)
    bench.store(1)
    own = files._read_all

    def read(descriptor: int, pieces: list[memoryview]) -> int:
        store._make_room(store.max_bytes)
        return own(descriptor, pieces)

    monkeypatch.setattr(files, "_read_all", read)
    assert bench.fetch(1) == [PageState.OK]
    assert store.nbytes == 0
    assert store._sizes == {}


def test_a_header_whose_digest_is_no_number_is_damaged(tmp_path: Path) -> None:
    """One bad record is one miss: the pages beside it come."""
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
    """Their unfinished files have names of their own."""
    ours, theirs = (Bench(FileStore(tmp_path)) for _ in range(2))
    own, ends = files._write_all, list[PageState]()

    def write(place: str, pieces: list[memoryview]) -> None:
        own(place, pieces)
        if not ends:
            ends.append(PageState.FAILED)
            ends[:] = [end.state for end in theirs.store(1).results]

    monkeypatch.setattr(files, "_write_all", write)
    assert [end.state for end in ours.store(1).results] == [PageState.OK]
    assert ends == [PageState.OK]
