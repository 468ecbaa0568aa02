"""The storage tier as the controller sees it."""

from hicache_dbg.pools.radix import Node
from hicache_dbg.pools.radix_types import Tokens
from hicache_dbg.pools.state import CacheState
from hicache_dbg.pools.storage.breaker import COOLDOWN_S, Breaker
from hicache_dbg.pools.storage.engine import StorageEngine
from hicache_dbg.pools.storage.fetches import Fetches
from hicache_dbg.pools.storage.keys import Identity
from hicache_dbg.pools.storage.stats import StorageStats
from hicache_dbg.pools.storage.store import PageStore
from hicache_dbg.pools.storage.stores import Stores
from hicache_dbg.pools.storage.watched import WatchedWorker

__all__ = ["OpenTier", "StorageTier"]

#: Seconds that a reader waits for pages, and after which a store counts as stuck.
TIMEOUT_S = 5.0


class StorageTier:
    """The configuration of a storage tier, to be passed to one controller, which closes the store.

    Args:
        backend: where pages go.
        identity: model, namespace and rank that the pages belong to.
        timeout: most seconds that a reader waits.
        queue_pages: most host pages that wait to be stored; by default a quarter of the host's.
        digests: see :class:`~hicache_dbg.pools.storage.engine.StorageEngine`.
        cooldown_s: seconds that the store is left alone after failures in a row.
    """

    def __init__(
        self,
        backend: PageStore,
        identity: Identity,
        *,
        timeout: float = TIMEOUT_S,
        queue_pages: int | None = None,
        digests: bool = True,
        cooldown_s: float = COOLDOWN_S,
    ) -> None:
        self.backend = backend
        self.identity = identity
        self.timeout = timeout
        self.queue_pages = queue_pages
        self.digests = digests
        self.cooldown_s = cooldown_s

    def open(self, state: CacheState) -> "OpenTier":
        """Start the tier for one cache."""
        return OpenTier(self, state)


class OpenTier:
    """A running storage tier of one cache."""

    def __init__(self, tier: StorageTier, state: CacheState) -> None:
        self.engine = StorageEngine(state.group, tier.backend, tier.identity, digests=tier.digests)
        self.stats = StorageStats()
        self.timeout = tier.timeout
        self._state = state
        self._workers = [
            WatchedWorker(f"hicache-{kind}", tier.timeout) for kind in ("store", "fetch")
        ]
        most = tier.queue_pages or max(1, state.host.pages // 4)
        writer, reader = self._workers
        # One breaker per direction: a folder that cannot be written can still be read.
        outward, inward = (Breaker(cooldown_s=tier.cooldown_s) for _ in range(2))
        self.stores = Stores(state, self.engine, outward, self.stats, writer, most_pages=most)
        self.fetches = Fetches(state, self.engine, inward, self.stats, reader)
        state.storing = lambda: self.timeout if self.stores.waiting and not writer.late else 0.0

    def offer(self, node: Node, pages: int) -> None:
        """Queue the last ``pages`` pages of the path to ``node``, which now have a host copy (lock held)."""
        self.stores.offer(node, pages)

    def prefetch(self, tokens: Tokens, timeout: float | None = None) -> int:
        """Fetch what continues the cached prefix of ``tokens`` to the host; return the pages gained."""
        return self.fetches.prefetch(tokens, self.timeout if timeout is None else timeout)

    def flush(self, timeout: float) -> bool:
        """Wait until the queue is stored; return False after ``timeout`` seconds (lock not held)."""
        with self._state.changed:
            return self._state.changed.wait_for(lambda: not self.stores.waiting, timeout)

    @property
    def stuck(self) -> bool:
        """Whether a call hangs in the store; it may hold host pages until it returns."""
        return any(worker.late for worker in self._workers)

    def close(self) -> None:
        """End the workers, and close the store unless a call hangs in it."""
        ended = [worker.close(self.timeout) for worker in self._workers]
        if all(ended):
            self.engine.close()
