"""A cache over a store: pages come back through it, and a bad store is a miss, never a hang."""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pools.caching import accounted, group_of, sequences, turn
from tests.pools.stored import (
    OURS,
    PAGES,
    PATIENCE_S,
    Bench,
    cache_of,
    files_of,
    stats_of,
    take_turns,
    tier_of,
)

from hicache_dbg.pools.backups import WritePolicy
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.storage.breaker import Breaker
from hicache_dbg.pools.storage.files import FileStore
from hicache_dbg.pools.storage.header import Header, HeaderError
from hicache_dbg.pools.storage.keys import Identity, page_keys
from hicache_dbg.pools.storage.results import PageResult
from hicache_dbg.pools.storage.store import Record
from hicache_dbg.pools.storage.tier import StorageTier

THREE = [[1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3]]
PAGES_OF_THREE = 11


@pytest.mark.parametrize("policy", ["write_through", "write_through_selective", "write_back"])
@pytest.mark.parametrize("layout", [Layout.PAGE_FIRST, Layout.LAYER_FIRST])
def test_what_the_host_let_go_of_comes_back(
    tmp_path: Path, policy: WritePolicy, layout: Layout
) -> None:
    """Sequences that do not fit on device and host together are fetched unchanged."""
    group = group_of(device_pages=PAGES, host_pages=PAGES, layout=layout)
    tier = tier_of(FileStore(tmp_path))
    with HiCacheController(group, policy=policy, storage=tier) as controller:
        # Three turns each, because the selective policy backs up what is used again.
        take_turns(controller, [tokens for tokens in sequences(THREE) for _ in range(3)] * 2)
        accounted(controller)
        assert stats_of(controller)["fetched"] > 0
        assert controller.stats.loaded_pages >= stats_of(controller)["fetched"]


def test_a_restart_answers_from_storage(tmp_path: Path) -> None:
    """A new cache over an old one's folder recomputes nothing."""
    with cache_of(FileStore(tmp_path)) as controller:
        take_turns(controller, sequences(THREE))
    with cache_of(FileStore(tmp_path)) as controller:
        take_turns(controller, sequences(THREE))
        assert stats_of(controller) == {"stored": 0, "fetched": 11, "asked": PAGES_OF_THREE}


@settings(max_examples=25, deadline=None)
@given(
    choices=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=10),
    bound=st.integers(1, 12),
    damage=st.integers(0, 3),
)
def test_under_any_pressure_and_damage_readers_see_their_own_bytes(
    tmp_path_factory: pytest.TempPathFactory, choices: list[list[int]], bound: int, damage: int
) -> None:
    """Evicted, truncated and damaged pages are recomputed; no reader sees a wrong byte."""
    folder = tmp_path_factory.mktemp("store")
    size = 4096 + 3 * 4 * (130 + 132)
    with cache_of(FileStore(folder, max_bytes=bound * size)) as controller:
        for number, tokens in enumerate(sequences(choices)):
            take_turns(controller, [tokens])
            for place in files_of(folder)[:damage]:
                raw = bytearray(place.read_bytes())
                raw[-1 - number] ^= 0x10
                place.write_bytes(raw if number % 2 else raw[: len(raw) // 2])
        accounted(controller)


class Unwell(FileStore):
    """A store that fails, hangs or loses pages on request."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.broken = ""
        self.released = threading.Event()
        self.asked = 0

    def put(self, records: Iterable[Record]) -> Iterator[PageResult]:
        """Hang or raise before anything is written."""
        self._ill("put")
        return super().put(records)

    def get(self, records: Sequence[Record]) -> Iterator[PageResult]:
        """Hang or raise before anything is read."""
        self._ill("get")
        return super().get(records)

    def exists(self, names: Sequence[str]) -> list[bool]:
        """Count, and hang or raise."""
        self.asked += 1
        self._ill("exists")
        return super().exists(names)

    def _ill(self, call: str) -> None:
        if self.broken == f"raise {call}":
            raise OSError(5, "the store is down")
        if self.broken == f"hang {call}":
            self.released.wait(20)


@pytest.mark.parametrize("call", ["get", "exists", "put"])
def test_a_store_that_raises_is_a_miss(tmp_path: Path, call: str) -> None:
    """Readers go on without it, and it is used again once it recovers."""
    store = Unwell(tmp_path)
    with cache_of(store) as controller:
        store.broken = f"raise {call}"
        take_turns(controller, sequences(THREE) * 2)
        assert stats_of(controller)["fetched"] == 0
        accounted(controller)
        store.broken = ""
        time.sleep(0.02)  # the breaker's cooldown
        take_turns(controller, sequences(THREE) * 2)
        assert stats_of(controller)["fetched"] > 0


def test_a_store_that_cannot_be_written_is_still_read(tmp_path: Path) -> None:
    """Failed stores do not stop fetches, e.g. over a folder that became read-only."""
    first, *others = sequences([[1], [2], [3], [4], [5]])
    with cache_of(FileStore(tmp_path)) as controller:
        turn(controller, first)
    store = Unwell(tmp_path)
    store.broken = "raise put"
    group = group_of(device_pages=PAGES, host_pages=PAGES)
    with HiCacheController(group, storage=StorageTier(store, OURS)) as controller:
        storage = controller.storage
        assert storage is not None
        for tokens in others:
            turn(controller, tokens)
            controller.flush()
        assert storage.stats.unstored == {"failed": 3, "unavailable": 1}
        assert controller.prefetch(first) == 1


@pytest.mark.parametrize("call", ["get", "exists"])
def test_a_store_that_hangs_holds_nobody_up(tmp_path: Path, call: str) -> None:
    """One reader waits out its patience, later ones do not wait, and close does not hang."""
    store = Unwell(tmp_path)
    controller = cache_of(store)
    take_turns(controller, sequences(THREE))
    store.broken = f"hang {call}"
    first = sequences(THREE)[0]
    began = time.monotonic()
    assert controller.prefetch(first) == 0
    assert PATIENCE_S <= time.monotonic() - began < 10 * PATIENCE_S
    began = time.monotonic()
    for tokens in sequences([[4], [5], [6]]):
        assert controller.prefetch(tokens) == 0
        turn(controller, tokens)
    controller.close()
    assert time.monotonic() - began < 20 * PATIENCE_S
    store.released.set()


def test_a_writer_that_hangs_leaves_room_on_the_host(tmp_path: Path) -> None:
    """The store queue is bounded; further pages are not stored, and the cache goes on."""
    store = Unwell(tmp_path)
    store.broken = "hang put"
    controller = cache_of(store)
    for tokens in sequences([[1], [2], [3], [4], [5], [6], [7], [8]]):
        turn(controller, tokens)
    controller.close()  # backups end, the store does not
    storage = controller.storage
    assert storage is not None
    assert storage.stores.waiting == 1
    assert sum(storage.stats.unstored.values()) == 7
    store.released.set()
    assert storage.flush(20)
    accounted(controller)


def test_what_comes_too_late_is_cached_all_the_same(tmp_path: Path) -> None:
    """A reader that gave up gets nothing from the store; the next finds the pages on the host."""
    store = Unwell(tmp_path)
    with cache_of(store, timeout=0.05) as controller:
        take_turns(controller, sequences(THREE))
        store.broken = "hang get"
        first = sequences(THREE)[0]
        assert controller.prefetch(first) == 0
        store.released.set()
        assert controller.storage is not None
        controller.storage.close()
        match = controller.match(first)
        assert match.host_pages.size == 4
        controller.unlock(match)


def test_the_breaker_lets_one_through_after_its_cooldown() -> None:
    """Three failures in a row open it; then one attempt per cooldown; one success closes it."""
    now = [0.0]
    breaker = Breaker(limit=3, cooldown_s=5, clock=lambda: now[0])
    assert [breaker.report(good=False) for _ in range(3)] == [False, False, True]
    assert (breaker.open, breaker.allows()) == (True, False)
    now[0] = 5.0
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    breaker.report(good=True)
    assert breaker.allows()


@settings(max_examples=50)
@given(
    one=st.binary(min_size=16, max_size=48),
    other=st.binary(min_size=16, max_size=48),
    names=st.lists(st.text(max_size=4), min_size=2, max_size=2),
)
def test_names_agree_exactly_where_prefix_and_identity_do(
    one: bytes, other: bytes, names: list[str]
) -> None:
    """A page's name is an injective function of all tokens up to its end, model and namespace."""
    first = page_keys(Identity(names[0], names[1]), one, 8)
    for identity in (Identity(names[0], names[1]), Identity(names[1], names[0])):
        second = page_keys(identity, other, 8)
        for number, (ours, theirs) in enumerate(zip(first, second, strict=False)):
            end = 8 * (number + 1)
            same_tokens = one[:end] == other[:end]
            assert (ours.tokens == theirs.tokens) == same_tokens
            assert (ours.name == theirs.name) == (
                same_tokens and identity == Identity(names[0], names[1])
            )


def test_a_header_that_does_not_fit_is_refused() -> None:
    """A namespace too long for the header is an error, not truncated."""
    header = Header(
        key="k", model="m", namespace="n" * 5000, rank=0, tokens="0", components=(), nbytes=1
    )
    with pytest.raises(HeaderError, match="5000 characters"):
        header.encode()


def test_find_counts_no_use_and_host_pages_need_their_prefix() -> None:
    """A lookup leaves no trace in the tree, and pages without their predecessors are refused."""
    with HiCacheController(group_of()) as controller:
        (tokens,) = sequences([[1, 2]])
        assert controller.tree.find(tokens)[1] == 0
        with pytest.raises(ValueError, match="insert what comes before"):
            controller.tree.insert_host(tokens, np.array([3], np.int64))
        assert OURS.rank == 0


def test_an_identity_with_no_room_in_a_header_is_refused_at_once(tmp_path: Path) -> None:
    """It is refused at construction, not at every store."""
    with pytest.raises(HeaderError, match="5000 characters"):
        Bench(FileStore(tmp_path), Identity("model", "n" * 5000))


def test_nobody_writes_to_the_pages_once_a_fetch_has_failed(tmp_path: Path) -> None:
    """The store's own threads have finished when the error is raised."""
    ended: list[bool] = []

    class Threaded(FileStore):
        def get(self, records: Sequence[Record]) -> Iterator[PageResult]:
            try:
                yield from super().get(records)
            finally:
                ended.append(True)

    bench = Bench(Threaded(tmp_path))
    bench.store(2)
    bench.engine.arrived = _raise  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="planted") as raised:
        bench.fetch(2)
    assert ended
    assert raised.tb is not None  # which keeps alive whatever the error came through


def test_pages_written_back_and_evicted_again_in_one_go_are_not_stored(tmp_path: Path) -> None:
    """With a host too small for all evicted pages at once, the reader gets its room and nothing leaks."""
    group = group_of(device_pages=2, host_pages=1)
    tier = tier_of(FileStore(tmp_path))
    with HiCacheController(group, policy="write_back", storage=tier) as controller:
        take_turns(controller, sequences([[1], [2], [3, 4]]))
        accounted(controller)
        assert controller.storage is not None
        assert controller.storage.stats.unstored == {"evicted": 1}


def _raise(*_: object) -> PageResult:
    raise RuntimeError("planted")
