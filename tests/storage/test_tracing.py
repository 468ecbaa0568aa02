"""Tracing of a store: every tile accounted for, every bad page named, no false finding."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from tests.pools.caching import sequences
from tests.pools.forking import FORKS, in_child
from tests.pools.stored import Bench, cache_of, files_of, take_turns

from hicache_dbg.pools.storage.engine import StorageEngine
from hicache_dbg.pools.storage.files import FileStore
from hicache_dbg.pools.storage.header import HEADER_BYTES
from hicache_dbg.pools.storage.results import PageResult
from hicache_dbg.pools.storage.store import Record
from hicache_dbg.tracer.attach import hicache_storage
from hicache_dbg.tracer.attach.hicache_storage_record import StorageRecord
from hicache_dbg.tracer.checks.storage import NEVER_PAGES, Contents, Stored, TierState, of_failure
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.events import Copied, FaultClass, Finding, Op, Tier
from hicache_dbg.tracer.events import Event as TracedEvent
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

THREE = [[1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3]]


@dataclass
class Watched:
    """The events of a traced block."""

    sink: MemorySink
    runtime: Runtime

    @property
    def findings(self) -> list[Finding]:
        """Findings so far."""
        self.runtime.flush()
        return self.sink.of(Finding)

    def copies(self, op: Op) -> list[Copied]:
        """Return the events of one kind of operation so far."""
        self.runtime.flush()
        return [event for event in self.sink.of(Copied) if event.op is op]


@contextmanager
def watching(checksum: Checksum = Checksum.LOADS, **more: float) -> Iterator[Watched]:
    """Trace what runs inside."""
    sink = MemorySink()
    settings = Settings(gate=Gate.ON, checksum=checksum, **more)  # type: ignore[arg-type]
    with Runtime.start(settings, sinks=[sink]) as runtime:
        yield Watched(sink, runtime)


@pytest.mark.parametrize("checksum", [Checksum.LOADS, Checksum.ENDS, Checksum.THREE])
def test_every_tile_of_a_clean_run_is_accounted_for(tmp_path: Path, checksum: Checksum) -> None:
    """Stores are witnessed, fetches and the loads after them verified, before and after a restart."""
    for life in range(2):
        with watching(checksum) as watched:
            with cache_of(FileStore(tmp_path)) as controller:
                take_turns(controller, sequences(THREE) * 2)
            assert watched.findings == []
            fetches, loads = watched.copies(Op.FETCH), watched.copies(Op.LOAD)
            for event in fetches + loads:
                assert event.verified == event.tiles > 0
            stores = watched.copies(Op.STORE)
            assert all(event.witnessed == event.tiles for event in stores)
            assert bool(stores) is (life == 0)
            assert {(event.src, event.dst) for event in fetches} == {(Tier.STORAGE, Tier.HOST)}
            assert all(event.bytes and event.io_backend == "file" for event in fetches)


class _Stalled(MemorySink):
    """A sink that blocks the bus thread until released."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = Event()

    def emit(self, events: Sequence[TracedEvent]) -> None:
        self.go_on.wait(30)
        super().emit(events)


def test_pages_given_away_before_the_bus_came_to_them_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Freeing a fetched page judges it first, so that a stalled bus leaves none unchecked."""
    monkeypatch.setattr(hicache_storage, "AT_ONCE_BYTES", -1)
    with cache_of(FileStore(tmp_path)) as controller:
        take_turns(controller, sequences(THREE))
    sink = _Stalled()
    with Runtime.start(Settings(gate=Gate.ON, checksum=Checksum.LOADS), sinks=[sink]) as runtime:
        with cache_of(FileStore(tmp_path)) as controller:
            take_turns(controller, sequences(THREE) * 3)
        assert not sink.events
        sink.go_on.set()
        watched = Watched(sink, runtime)
        fetches = watched.copies(Op.FETCH)
        assert len(fetches) > 2
        for event in fetches:
            assert event.verified == event.tiles > 0
        assert watched.findings == []


def test_an_operation_that_finds_no_room_keeps_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody judges it, so whoever frees its pages need not read them."""
    monkeypatch.setattr(hicache_storage, "AT_ONCE_BYTES", -1)
    with cache_of(FileStore(tmp_path)) as controller:
        take_turns(controller, sequences(THREE))
    with watching() as watched:
        refused: list[object] = []
        # As push without room: it keeps nothing, and says so by None's being false.
        monkeypatch.setattr(watched.runtime.session.bus, "push", refused.append)
        with cache_of(FileStore(tmp_path)) as controller:
            take_turns(controller, sequences(THREE) * 3)
            assert controller.storage is not None
            assert controller.storage.stats.fetched_pages > 0
        assert refused
        monkeypatch.undo()
        storage = watched.runtime.attachment._storage  # type: ignore[attr-defined]
        assert all(record.judged for _, record in storage._unread._waiting)


def test_a_finding_has_room_where_its_operation_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are one record: with one place left in the ring neither is lost."""
    with cache_of(FileStore(tmp_path)) as controller:
        take_turns(controller, sequences(THREE))
    victim = files_of(tmp_path)[0]
    victim.write_bytes(_cut(victim.read_bytes()))
    with watching() as watched:
        bus = watched.runtime.session.bus
        push, pushed = bus.push, list[object]()

        def last(record: Any) -> bool:
            """Take one storage record at a time, and nothing behind it."""
            if isinstance(record, StorageRecord):
                pushed.clear()
            pushed.append(record)
            return push(record) if len(pushed) == 1 else False

        monkeypatch.setattr(bus, "push", last)
        with cache_of(FileStore(tmp_path)) as controller:
            take_turns(controller, sequences(THREE))
        monkeypatch.undo()
        assert {found.cls for found in watched.findings} == {FaultClass.STORAGE_DAMAGE}


@pytest.mark.parametrize(
    ("checksum", "reason"), [(Checksum.OFF, "off"), (Checksum.SAMPLE, "sampled_out")]
)
def test_what_is_not_looked_at_says_so(tmp_path: Path, checksum: Checksum, reason: str) -> None:
    """Without digests, or with none selected, tiles are skipped for that reason and none is verified."""
    with watching(checksum, sample=0.0) as watched:
        with cache_of(FileStore(tmp_path)) as controller:
            take_turns(controller, sequences(THREE) * 2)
        stores, fetches = watched.copies(Op.STORE), watched.copies(Op.FETCH)
        assert stores
        assert fetches
        for event in stores + fetches:
            assert event.skipped == {reason: event.tiles}
        assert watched.findings == []


def _flip(raw: bytes) -> bytes:
    return raw[:-1] + bytes([raw[-1] ^ 1])


def _cut(raw: bytes) -> bytes:
    return raw[: len(raw) // 2]


@pytest.mark.parametrize(
    ("damage", "words"), [(_flip, "payload digest differs"), (_cut, "the record is truncated")]
)
def test_damage_between_two_lives_is_named(tmp_path: Path, damage: object, words: str) -> None:
    """A file that changed between two runs is a miss and a finding, and no reader is harmed."""
    with cache_of(FileStore(tmp_path)) as controller:
        take_turns(controller, sequences(THREE))
    victim = files_of(tmp_path)[0]
    victim.write_bytes(damage(victim.read_bytes()))  # type: ignore[operator]
    with watching() as watched:
        with cache_of(FileStore(tmp_path)) as controller:
            take_turns(controller, sequences(THREE))
        (finding,) = watched.findings
        assert (finding.cls, finding.op) == (FaultClass.STORAGE_DAMAGE, "fetch")
        assert words in finding.message
        assert victim.name.removesuffix(".page") in finding.message
        bad = [event for event in watched.copies(Op.FETCH) if event.skipped]
        assert all(event.skipped["failed"] + event.verified == event.tiles for event in bad)
        assert bad


def test_damage_that_the_store_lets_through_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the store's own check, a page is compared with its header's digest after a restart."""
    with cache_of(FileStore(tmp_path)) as controller:
        take_turns(controller, sequences(THREE))
    for place in files_of(tmp_path):
        place.write_bytes(_flip(place.read_bytes()))
    monkeypatch.setattr("hicache_dbg.pools.storage.engine._compared", lambda page, _digest: page)
    with watching() as watched:
        bench = cache_of(FileStore(tmp_path))
        assert bench.prefetch(sequences(THREE)[0]) == 4
        bench.close()
        assert [finding.cls for finding in watched.findings] == [FaultClass.STORAGE_DAMAGE]
        moved = {(event.mismatched, event.tiles) for event in watched.copies(Op.FETCH)}
        assert moved == {(12, 12)}


def test_an_errno_is_in_the_event_and_the_finding(tmp_path: Path) -> None:
    """A disk that refuses writes is a dead tier, with the errno."""
    bench = Bench(FileStore(tmp_path))
    folder = tmp_path / bench.keys[0].name[0]
    folder.rmdir()
    folder.write_bytes(b"no folder")
    with watching() as watched:
        bench.store(1)
        (finding,) = watched.findings
        assert finding.cls is FaultClass.DEAD_TIER
        assert "errno 20" in finding.message
        assert {"errno 20" in event.status for event in watched.copies(Op.STORE)} == {True}


def test_a_tier_that_never_answers_is_told_once() -> None:
    """Misses of pages known to be stored become one finding, unless a hit or an eviction explains them.

    If a store does not report evictions, the finding says so.
    """
    tier = TierState()
    told = [tier.looked_up(1, 0, 0) for _ in range(3 * NEVER_PAGES)]
    assert {at: fault.got for at, fault in enumerate(told) if fault} == {
        NEVER_PAGES - 1: f"{NEVER_PAGES} misses of stored pages"
    }
    for hit, evicted in ((1, 0), (0, 1)):
        tier = TierState()
        tier.looked_up(1, hit, evicted)
        assert not any(tier.looked_up(1, 0, evicted) for _ in range(3 * NEVER_PAGES))
    silent = TierState()
    (fault,) = filter(None, (silent.looked_up(1, 0, None) for _ in range(3 * NEVER_PAGES)))
    assert fault.got.endswith("the store does not say what it evicts")


@pytest.mark.parametrize(
    ("errno", "got", "told"), [(0, "", "short"), (5, "", "errno 5"), (5, "12 B", "12 B")]
)
def test_a_failure_says_what_came_instead(errno: int, got: str, told: str) -> None:
    """What the store found, else its errno, else the page's state."""
    assert of_failure("short", "read", errno, "24 B", got).got == told


@pytest.mark.parametrize("is_ours", [False, True])
def test_another_computation_of_the_same_tokens_is_no_damage(tmp_path: Path, is_ours: bool) -> None:
    """If the store has other bytes than this process stored last, their own header vouches for them."""
    store = FileStore(tmp_path)
    if not is_ours:
        Bench(store).store(4)  # left alone by the next one
    with watching() as watched:
        bench = Bench(store)
        if is_ours:
            bench.store(4)
            for key in bench.keys[:4]:
                store.discard(key.name)
        bench.fill(seed=1)
        bench.store(4)
        bench.fetch(4)
        assert watched.findings == []
        assert all(event.verified == event.tiles > 0 for event in watched.copies(Op.FETCH))


@pytest.mark.parametrize("lost", ["before", "after", "room", "off", "nothing"])
@pytest.mark.parametrize("digests", [True, False])
def test_a_store_that_was_not_recorded_accuses_nobody(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    internal_errors: list[str],
    lost: str,
    digests: bool,
) -> None:
    """A page was evicted and stored again with other bytes, unseen: what was known of it is forgotten."""

    def fail(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    store = FileStore(tmp_path)
    with watching() as watched:
        bench = Bench(store, digests=digests)
        bench.store(4)
        for key in bench.keys[:4]:
            store.discard(key.name)
        bench.fill(seed=1)
        with monkeypatch.context() as patch:
            if lost in {"before", "after"}:
                method = "_open" if lost == "before" else "_take"
                patch.setattr(hicache_storage.StorageAttachment, method, fail)
            elif lost == "room":
                patch.setattr(watched.runtime.session.bus, "push", lambda _: False)
            elif lost == "off":
                watched.runtime.switch(on=False)
            bench.store(4)
        watched.runtime.switch(on=True)
        bench.fetch(4)
        assert watched.findings == []
        (copied,) = {event.mismatched for event in watched.copies(Op.FETCH)}
        assert copied == 0
        failed = lost in {"before", "after"}
        unseen = Evidence.of(watched.sink.events).unseen
    assert len(internal_errors) == failed
    internal_errors.clear()
    assert failed <= (Evidence.of(watched.sink.events).unseen > 0), unseen


@FORKS
def test_a_forked_child_stores_whatever_a_thread_of_its_parent_held(tmp_path: Path) -> None:
    """Its locks are its own."""

    def child() -> bool:
        bench = Bench(FileStore(tmp_path))
        return all(end.good for end in bench.store(2).results)

    with watching() as watched:
        storage = watched.runtime.attachment._storage  # type: ignore[attr-defined]
        with storage._lock, storage._unread._lock:
            said = list[str]()
            forker = Thread(target=lambda: said.extend(in_child(child)))
            forker.start()  # another thread holds the locks, and the child lacks it
            forker.join(30)
        assert said == ["True"]


def test_a_store_that_was_not_recorded_keeps_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, internal_errors: list[str]
) -> None:
    """Nobody judges it, so whoever frees its pages need not read them."""
    monkeypatch.setattr(hicache_storage, "AT_ONCE_BYTES", -1)
    with cache_of(FileStore(tmp_path)) as controller:
        take_turns(controller, sequences(THREE))
    with watching() as watched, cache_of(FileStore(tmp_path)) as controller:
        storage = watched.runtime.attachment._storage  # type: ignore[attr-defined]
        take = storage._take

        def fail(record: StorageRecord) -> None:
            take(record)
            raise RuntimeError("a bug of ours")

        monkeypatch.setattr(storage, "_take", fail)
        take_turns(controller, sequences(THREE) * 2)
        assert internal_errors
        internal_errors.clear()
        assert all(record.judged for _, record in storage._unread._waiting)
        monkeypatch.undo()


def test_an_empty_store_beside_a_full_one_is_not_dead(tmp_path: Path) -> None:
    """A page given to one store need not be in another."""
    with watching() as watched:
        Bench(FileStore(tmp_path / "full")).store(8)
        watched.runtime.flush()
        other = Bench(FileStore(tmp_path / "empty"))
        for _ in range(2 * NEVER_PAGES):
            other.engine.present(other.keys[:8])
        assert watched.findings == []


def test_a_page_evicted_between_question_and_fetch_is_a_plain_miss(tmp_path: Path) -> None:
    """Whichever process evicted it, the index makes no promise about it."""
    size = Bench(FileStore(tmp_path / "one")).engine.image.page_bytes + HEADER_BYTES
    ours, theirs = (FileStore(tmp_path / "two", max_bytes=2 * size) for _ in range(2))
    bench = Bench(ours)
    with watching() as watched:
        for store in (ours, theirs):
            bench.store(2)
            assert bench.engine.present(bench.keys[:2]) == 2
            other = Bench(store)
            store.put(())
            other._done("store", other.keys[4:8], np.arange(4))
            bench.fetch(2)
        assert watched.findings == []


class _OneOfTwo(FileStore):
    """A store that delivers the first of two pages of one name, and reports both."""

    def get(self, records: Sequence[Record]) -> Iterator[PageResult]:
        seen = dict[str, PageResult]()
        for record in records:
            if record.name not in seen:
                (seen[record.name],) = super().get([record])
            yield seen[record.name]


def test_two_pages_of_one_name_in_one_fetch_are_a_matter_of_their_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes the one that was not delivered: one cause, one finding per page."""
    bench = Bench(_OneOfTwo(tmp_path))
    monkeypatch.setattr(bench.engine, "arrived", lambda _key, _record, got: got)
    mine = bench.keys[0]
    other = mine._replace(tokens=mine.tokens ^ 1)
    with watching() as watched:
        bench.store(1)
        bench.fetch(2, [other, mine])
        found = watched.findings
        assert {finding.cls for finding in found} == {FaultClass.KEY_IDENTITY}


class _Slow(FileStore):
    """A store that answers when told to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked, self.go_on = Event(), Event()

    def get(self, records: Sequence[Record]) -> Iterator[PageResult]:
        self.asked.set()
        self.go_on.wait(10)
        yield from super().get(records)


def test_a_reader_behind_others_does_not_blame_the_store(tmp_path: Path) -> None:
    """A reader that left the queue was not refused; one that does not wait accuses nobody."""
    with cache_of(FileStore(tmp_path)) as controller:
        take_turns(controller, sequences(THREE))
    with watching() as watched:
        store = _Slow(tmp_path)
        with cache_of(store, timeout=10) as controller:
            first = Thread(target=controller.prefetch, args=(sequences(THREE)[0],))
            first.start()
            assert store.asked.wait(10)
            for tokens in sequences(THREE):
                assert controller.prefetch(tokens, timeout=0.0) == 0
            store.go_on.set()
            first.join()
        assert watched.findings == []


def test_a_fetch_that_hangs_is_told_once_also_where_nobody_waits_long(tmp_path: Path) -> None:
    """Impatient readers do not hide a store that never answers."""
    with cache_of(FileStore(tmp_path)) as controller:
        take_turns(controller, sequences(THREE))
    with watching() as watched:
        store = _Slow(tmp_path)
        with cache_of(store) as controller:
            assert controller.storage is not None
            deadline = time.monotonic() + 10
            while not controller.storage.stuck and time.monotonic() < deadline:
                controller.prefetch(sequences(THREE)[0], timeout=0.01)
            for tokens in sequences(THREE):
                controller.prefetch(tokens, timeout=0.01)
            store.go_on.set()
        assert [finding.cls for finding in watched.findings] == [FaultClass.DEAD_TIER]


def test_contents_keep_the_latest_pages() -> None:
    """The memory of stored contents is bounded; the oldest is dropped first."""
    contents = Contents(most=2)
    for number in range(3):
        contents.keep(str(number), Stored(number, number, 0, {}))
    assert [str(number) in contents for number in range(3)] == [False, True, True]


def test_detached_functions_are_the_same_objects() -> None:
    """After detaching, the engine runs the original function objects."""
    names = ("store", "fetch", "present", "gave_up")
    before = [StorageEngine.__dict__[name] for name in names]
    with watching():
        assert all(
            StorageEngine.__dict__[name] is not own for name, own in zip(names, before, strict=True)
        )
    assert [StorageEngine.__dict__[name] for name in names] == before
    assert np.all([True])
