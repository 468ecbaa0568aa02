"""Lookup results: where requested pages are found and why others are not; each counts once."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pools.caching import P, group_of, sequences
from tests.pools.stored import tier_of

from hicache_dbg.pools.allocator import OutOfPages
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.lookups import ENDS
from hicache_dbg.pools.storage.files import FileStore
from hicache_dbg.pools.storage.stats import MISSES, StorageStats
from hicache_dbg.pools.transfer import CopyOp, TransferEngine, TransferError

PATIENT_S = 20.0


class Refusing(TransferEngine):
    """An engine whose loads fail."""

    def load(self, op: CopyOp, on_layer_done: object) -> None:
        """Fail."""
        raise TransferError(f"the bus is gone, {op.kind} {op.op_id} tells {on_layer_done} nothing")


def tokens_of(pages: int, first: int = 0) -> np.ndarray:
    """Return so many pages of tokens."""
    return np.arange(first, first + pages * P, dtype=np.int32)


def on_host_only(cache: HiCacheController, pages: int) -> None:
    """Cache so many pages of ``tokens_of``, and evict them from the device."""
    cache.insert(tokens_of(pages), cache.alloc_device(pages))
    cache.flush()
    cache.free_device(cache.alloc_device(cache.allocators["device"].pages))


def counted(cache: HiCacheController) -> dict[tuple[str, str], int]:
    """Return the non-zero counts."""
    return {end: pages for end, pages in cache.stats.lookups.items() if pages}


def test_a_page_is_a_hit_of_the_tier_that_had_it() -> None:
    """Of 5 requested pages, 2 are on the device, 1 came from the host, 2 are missing."""
    with HiCacheController(group_of()) as cache:
        on_host_only(cache, 3)
        first = cache.match(tokens_of(2))
        cache.load_back(first)
        cache.flush()
        second = cache.match(tokens_of(5))
        cache.load_back(second)
        cache.flush()
        cache.unlock(first)
        assert counted(cache) == {("host", "hit"): 2}
        cache.unlock(second)
    assert counted(cache) == {("host", "hit"): 3, ("device", "hit"): 2, ("none", "not_cached"): 2}


def test_pages_that_found_no_room_are_told_once() -> None:
    """A reader without room on the device counts its lost pages once, however often it asks."""
    with HiCacheController(group_of()) as cache:
        on_host_only(cache, 3)
        match, taken = cache.match(tokens_of(3)), cache.alloc_device(8)
        for _ in range(2):
            with pytest.raises(OutOfPages):
                cache.load_back(match)
        cache.free_device(taken)
        cache.unlock(match)
        assert counted(cache) == {("host", "no_room"): 3}


def test_pages_that_did_not_come_back_are_no_hits() -> None:
    """A failed load, and one that was never requested, do not count as hits."""
    cache = HiCacheController(group_of(), engine=Refusing())
    on_host_only(cache, 3)
    unused, failed = cache.match(tokens_of(2)), cache.match(tokens_of(3))
    ticket = cache.load_back(failed)
    with pytest.raises(TransferError):
        cache.wait_layer(0, ticket)
    cache.unlock(unused)
    cache.unlock(failed)
    cache.close()
    assert counted(cache) == {("host", "unused"): 2, ("host", "failed"): 3}


def test_ten_pages_of_a_store_have_one_end_each(tmp_path: Path) -> None:
    """Of 10 requested, 2 were never stored, 1 is damaged, 4 lie behind it, 3 are fetched."""
    store = FileStore(tmp_path)
    with HiCacheController(group_of(16, 32), storage=tier_of(store, PATIENT_S)) as cache:
        cache.insert(tokens_of(8), cache.alloc_device(8))
        cache.flush()
        assert cache.storage is not None
        (key,) = cache.storage.engine.keys(tokens_of(4).tobytes())[3:]
    (record,) = tmp_path.rglob(f"{key.name}*")
    raw = bytearray(record.read_bytes())
    raw[-1] ^= 1
    record.write_bytes(raw)
    with HiCacheController(group_of(16, 32), storage=tier_of(store, PATIENT_S)) as cache:
        assert cache.prefetch(tokens_of(10)) == 3
        assert cache.storage is not None
        stats = cache.storage.stats
        assert stats.misses == {"missing": 2, "damaged": 1, "behind": 4}
        assert stats.asked_pages == stats.given_pages + sum(stats.misses.values())


def test_a_host_without_room_is_told(tmp_path: Path) -> None:
    """Pages in the store without room on the host are misses for lack of room."""
    with HiCacheController(
        group_of(8, 8), storage=tier_of(FileStore(tmp_path), PATIENT_S)
    ) as cache:
        cache.insert(tokens_of(4), cache.alloc_device(4))
        cache.flush()
    with HiCacheController(
        group_of(8, 2), storage=tier_of(FileStore(tmp_path), PATIENT_S)
    ) as cache:
        assert cache.prefetch(tokens_of(4)) == 2
        assert cache.storage is not None
        assert cache.storage.stats.misses == {"no_room": 2}


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_every_page_asked_for_has_one_end(turns: list[int]) -> None:
    """In a cache that is too small, the outcomes add up to the requested pages."""
    asked = Counter[str]()
    with HiCacheController(group_of(4, 6)) as cache:
        for tokens in (sequences([[1, 1], [2, 2, 2], [3], [1, 1, 4]])[turn] for turn in turns):
            match = cache.match(tokens)
            asked["pages"] += len(tokens) // P
            ticket = cache.load_back(match)
            for layer in cache.group.layer_ids:
                cache.wait_layer(layer, ticket)
            new = cache.alloc_device(len(tokens) // P - match.pages)
            cache.insert(tokens, np.concatenate([ticket.device_pages, new]))
            cache.unlock(match)
            cache.flush()
        assert sum(cache.stats.lookups.values()) == asked["pages"]
        assert set(cache.stats.lookups) <= {(tier, end) for tier in ENDS for end in ENDS[tier]}


def test_the_list_of_misses_is_closed() -> None:
    """The store's outcomes and three of our own, each once."""
    assert len(set(MISSES)) == len(MISSES)
    assert {"timeout", "no_room", "behind", "missing", "damaged"} <= set(MISSES)
    assert StorageStats().misses == {}
