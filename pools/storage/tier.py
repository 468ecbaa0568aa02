"""A store behind a cache: what a controller needs of storage, in one object."""

from hicache_dbg.pools.radix import Node
from hicache_dbg.pools.radix_types import Tokens
from hicache_dbg.pools.state import CacheState
from hicache_dbg.pools.storage.breaker import Breaker
from hicache_dbg.pools.storage.engine import StorageEngine
from hicache_dbg.pools.storage.fetches import Fetches
from hicache_dbg.pools.storage.keys import Identity
from hicache_dbg.pools.storage.stats import StorageStats
from hicache_dbg.pools.storage.store import PageStore
from hicache_dbg.pools.storage.stores import Stores
from hicache_dbg.pools.storage.watched import WatchedWorker

__all__ = ["OpenTier", "StorageTier"]

#: How long a reader waits for pages, and a task may take before the store counts as stuck, in seconds.
TIMEOUT_S = 5.0


class StorageTier:
    """A store and whose pages it keeps, to be given to one controller, which closes it.

    Args:
        backend: where pages go.
        identity: whose they are: model, namespace, rank.
        timeout: seconds a reader waits at most.
        queue_pages: host pages that may wait to be stored; None: a quarter of the host's.
        digests: see :class:`~hicache_dbg.pools.storage.engine.StorageEngine`.
        breaker: when the store is not asked any more; one of its own by default.
    """

    def __init__(
        self,
        backend: PageStore,
        identity: Identity,
        *,
        timeout: float = TIMEOUT_S,
        queue_pages: int | None = None,
        digests: bool = True,
        breaker: Breaker | None = None,
    ) -> None:
        self.backend = backend
        self.identity = identity
        self.timeout = timeout
        self.queue_pages = queue_pages
        self.digests = digests
        self.breaker = breaker or Breaker()

    def open(self, state: CacheState) -> "OpenTier":
        """Begin to serve one cache."""
        return OpenTier(self, state)


class OpenTier:
    """A storage tier at work for one cache."""

    def __init__(self, tier: StorageTier, state: CacheState) -> None:
        self.engine = StorageEngine(state.group, tier.backend, tier.identity, digests=tier.digests)
        self.stats = StorageStats()
        self.breaker = tier.breaker
        self.timeout = tier.timeout
        self._state = state
        self._workers = [
            WatchedWorker(f"hicache-{kind}", tier.timeout) for kind in ("store", "fetch")
        ]
        most = tier.queue_pages or max(1, state.host.pages // 4)
        writer, reader = self._workers
        self.stores = Stores(state, self.engine, tier.breaker, self.stats, writer, most_pages=most)
        self.fetches = Fetches(state, self.engine, tier.breaker, self.stats, reader)
        state.storing = lambda: self.timeout if self.stores.waiting and not writer.late else 0.0

    def offer(self, node: Node, pages: int) -> None:
        """The last ``pages`` pages of the path to ``node`` have a host copy now (lock held)."""
        self.stores.offer(node, pages)

    def prefetch(self, tokens: Tokens, timeout: float | None = None) -> int:
        """Bring what continues the cached prefix of ``tokens`` to the host; pages gained."""
        return self.fetches.prefetch(tokens, self.timeout if timeout is None else timeout)

    def flush(self, timeout: float) -> bool:
        """Wait until all that is queued is stored; False where that takes longer (lock not held)."""
        with self._state.changed:
            return self._state.changed.wait_for(lambda: not self.stores.waiting, timeout)

    @property
    def stuck(self) -> bool:
        """Whether something hangs in the store: it may hold host pages until it comes back."""
        return any(worker.late for worker in self._workers)

    def close(self) -> None:
        """End the workers, and the store where nothing hangs in it."""
        ended = [worker.close(self.timeout) for worker in self._workers]
        if all(ended):
            self.engine.close()
