"""A small cache over a store, and records to put into one directly."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tests.pools.caching import Tokens, accounted, group_of, turn

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.storage.engine import StorageEngine, StorageOp
from hicache_dbg.pools.storage.files import FileStore
from hicache_dbg.pools.storage.keys import Identity, PageKey
from hicache_dbg.pools.storage.results import PageState
from hicache_dbg.pools.storage.store import PageStore
from hicache_dbg.pools.storage.tier import StorageTier

OURS = Identity("model")
#: Fewer pages than three sequences have, at both ends.
PAGES = 6
PATIENCE_S = 0.2


def tier_of(store: PageStore, timeout: float = PATIENCE_S) -> StorageTier:
    """Return a tier with little patience, which retries a failed store soon."""
    return StorageTier(store, OURS, timeout=timeout, cooldown_s=0.01)


def cache_of(
    store: PageStore, layout: Layout = Layout.PAGE_FIRST, timeout: float = PATIENCE_S
) -> HiCacheController:
    """Return a cache whose device and host each hold one and a half sequences."""
    group = group_of(device_pages=PAGES, host_pages=PAGES, layout=layout)
    return HiCacheController(group, storage=tier_of(store, timeout))


def take_turns(controller: HiCacheController, rounds: Iterable[Tokens]) -> None:
    """Let readers take turns; each finds its own bytes or none."""
    for tokens in rounds:
        controller.prefetch(tokens)
        turn(controller, tokens)
        controller.flush()
        controller.check()


def stats_of(controller: HiCacheController) -> dict[str, int]:
    """Return the tier's counters without its misses."""
    assert controller.storage is not None
    stats = controller.storage.stats
    return {
        "stored": stats.stored_pages,
        "fetched": stats.fetched_pages,
        "asked": stats.asked_pages,
    }


class Bench:
    """A storage engine over host pages, without a cache."""

    def __init__(
        self,
        store: PageStore,
        identity: Identity = OURS,
        *,
        layout: Layout = Layout.PAGE_FIRST,
        pages: int = 8,
        digests: bool = True,
    ) -> None:
        self.group = group_of(device_pages=1, host_pages=pages, layout=layout)
        self.engine = StorageEngine(self.group, store, identity, digests=digests)
        self.keys = self.engine.keys(np.arange(4 * pages, dtype="<i4").tobytes())
        self.fill()

    def fill(self, seed: int = 0) -> None:
        """Put random bytes into every host page."""
        generator = np.random.default_rng(seed)
        for memory in self.memories():
            memory[:] = generator.integers(0, 256, memory.size, np.uint8)

    def memories(self) -> list[np.ndarray]:
        """Return the host pools' memory, flat."""
        return [
            buffer.flat(0).numpy()
            for mirror in self.group.mirrors
            for buffer in mirror.host.buffers.values()
        ]

    def page(self, page: int) -> bytes:
        """Return all bytes of a host page."""
        return b"".join(map(bytes, self.engine.image.pieces(page)))

    def store(self, count: int) -> StorageOp:
        """Store the first pages under their keys."""
        return self._done("store", self.keys[:count], np.arange(count))

    def fetch(self, count: int, keys: list[PageKey] | None = None) -> list[PageState]:
        """Fetch the first pages into zeroed host memory; return the outcome of each."""
        for memory in self.memories():
            memory[:] = 0
        wanted = (self.keys if keys is None else keys)[:count]
        return [end.state for end in self._done("fetch", wanted, np.arange(count)).results]

    def _done(self, kind: str, keys: list[PageKey], pages: np.ndarray) -> StorageOp:
        op = self.engine.op(kind, keys, pages, np.ones(pages.size, np.uint32))  # type: ignore[arg-type]
        (self.engine.store if kind == "store" else self.engine.fetch)(op)
        assert op.status == "done"
        return op


def files_of(folder: Path) -> list[Path]:
    """Return the pages' files, oldest first."""
    return sorted(folder.glob("?/*.page"), key=lambda place: place.stat().st_mtime_ns)


__all__ = [
    "OURS",
    "PAGES",
    "PATIENCE_S",
    "Bench",
    "FileStore",
    "accounted",
    "cache_of",
    "files_of",
    "stats_of",
    "take_turns",
    "tier_of",
]
