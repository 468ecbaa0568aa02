"""Host to storage: pages with a host copy are stored in the background."""

import numpy as np

from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.radix import Node
from hicache_dbg.pools.state import CacheState
from hicache_dbg.pools.storage.breaker import Breaker
from hicache_dbg.pools.storage.engine import StorageEngine
from hicache_dbg.pools.storage.results import PageState
from hicache_dbg.pools.storage.stats import StorageStats
from hicache_dbg.pools.storage.watched import WatchedWorker

__all__ = ["Stores"]


class Stores:
    """Executes stores on a worker; a host page cannot be evicted until it is stored.

    The queue is therefore bounded by ``most_pages``, or by one backup if that is larger. Pages that
    find it full, or arrive while the store does not answer, are not stored.
    """

    def __init__(
        self,
        state: CacheState,
        engine: StorageEngine,
        breaker: Breaker,
        stats: StorageStats,
        worker: WatchedWorker,
        *,
        most_pages: int,
    ) -> None:
        self._state = state
        self._engine = engine
        self._breaker = breaker
        self._stats = stats
        self._worker = worker
        self._most = most_pages
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """Number of pages that are queued or being stored."""
        return self._waiting

    def offer(self, node: Node, pages: int) -> None:
        """Queue the last ``pages`` pages of the path to ``node``, which are on the host (lock held)."""
        # When much is written back at once, later pages may have evicted these from the host.
        why = self._refusal(pages) if node.host.size else "evicted"
        if why:
            self._stats.not_stored(why, pages)
            return
        state = self._state
        parts = [item.host for item in node.path()][::-1]
        host = np.concatenate(parts)[-pages:]
        state.tree.lock(node)
        state.host.acquire(host)
        self._waiting += pages
        tokens, generations = state.tree.tokens(node).tobytes(), state.host.generation(host)
        self._worker.submit(lambda: self._carry_out(node, tokens, host, generations))

    def _refusal(self, pages: int) -> str:
        if self._waiting and self._waiting + pages > self._most:
            return "stuck" if self._worker.late else "queue_full"
        return PageState.UNAVAILABLE if self._breaker.open or self._worker.late else ""

    def _carry_out(self, node: Node, tokens: bytes, host: Ids, generations: np.ndarray) -> None:
        try:
            self._store(tokens, host, generations)
        finally:
            state = self._state
            with state.changed:
                state.host.release(host)
                state.tree.unlock(node)
                self._waiting -= host.size
                state.changed.notify_all()

    def _store(self, tokens: bytes, host: Ids, generations: np.ndarray) -> None:
        if not self._breaker.allows():
            self._stats.not_stored(PageState.UNAVAILABLE, host.size)
            return
        try:
            keys = self._engine.keys(tokens)[-host.size :]
            op = self._engine.op("store", keys, host, generations)
            self._engine.store(op)
            failed = sum(not result.good for result in op.results)
        except Exception:  # noqa: BLE001 (whatever a store raises, the cache goes on without it)
            failed = host.size
        self._stats.stores += 1
        self._stats.stored_pages += host.size - failed
        if failed:
            self._stats.not_stored(PageState.FAILED, failed)
        if self._breaker.report(good=not failed):
            self._engine.gave_up("store", failed, "errors in a row")
