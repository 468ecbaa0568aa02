"""Storage to host: the pages that continue a cached prefix, brought in before they are matched."""

from dataclasses import dataclass, field
from threading import Event

import numpy as np

from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.radix import Node
from hicache_dbg.pools.radix_input import TOKEN_BYTES, encode
from hicache_dbg.pools.radix_types import Tokens
from hicache_dbg.pools.state import CacheState
from hicache_dbg.pools.storage.breaker import Breaker
from hicache_dbg.pools.storage.engine import StorageEngine, StorageOp
from hicache_dbg.pools.storage.results import PageState
from hicache_dbg.pools.storage.stats import StorageStats
from hicache_dbg.pools.storage.watched import WatchedWorker

__all__ = ["FetchRequest", "Fetches"]


@dataclass(slots=True, eq=False)
class FetchRequest:
    """Pages wanted after the ``cached`` first ones of ``tokens``, whose node is locked meanwhile."""

    node: Node
    tokens: bytes
    cached: int
    given_up: bool = False
    pages: int = 0
    done: Event = field(default_factory=Event)


class Fetches:
    """Carries fetches out on a worker; who asked waits, but not for ever.

    A page counts once all its pools' bytes are there and good. What comes too late for its reader
    is cached all the same.
    """

    def __init__(
        self,
        state: CacheState,
        engine: StorageEngine,
        breaker: Breaker,
        stats: StorageStats,
        worker: WatchedWorker,
    ) -> None:
        self.state = state
        self._engine = engine
        self._breaker = breaker
        self._stats = stats
        self._worker = worker
        self._page = state.group.page_tokens * TOKEN_BYTES

    def prefetch(self, tokens: Tokens, timeout: float) -> int:
        """Bring in what continues the cached prefix of ``tokens``; pages gained within ``timeout`` s."""
        request = self._request(encode(tokens))
        if request is None:
            return 0
        self._worker.submit(lambda: self._carry_out(request))
        if not request.done.wait(timeout):
            request.given_up = True
            self._stats.missed("timeout")
            self._breaker.report(good=False)
            self._engine.gave_up("fetch", 1, f"no answer within {timeout} s")
            return 0
        return request.pages

    def _request(self, tokens: bytes) -> FetchRequest | None:
        state = self.state
        with state.changed:
            node, cached = state.tree.find(tokens)
            wanted = len(tokens) // self._page - cached
            if not wanted:
                return None
            self._stats.asked_pages += wanted
            if self._worker.late or not self._breaker.allows():
                self._stats.missed(PageState.UNAVAILABLE, wanted)
                return None
            state.tree.lock(node)
            return FetchRequest(node, tokens[: (cached + wanted) * self._page], cached)

    def _carry_out(self, request: FetchRequest) -> None:
        try:
            if not request.given_up:
                self._fetch(request)
        except Exception:  # noqa: BLE001 (a store may raise anything: to its reader it is a miss)
            self._failed()
        finally:
            with self.state.changed:
                self.state.tree.unlock(request.node)
            request.done.set()

    def _failed(self) -> None:
        self._stats.missed(PageState.FAILED)
        if self._breaker.report(good=False):
            self._engine.gave_up("fetch", 1, "errors in a row")

    def _fetch(self, request: FetchRequest) -> None:
        keys = self._engine.keys(request.tokens)[request.cached :]
        there = self._engine.present(keys)
        if there < len(keys):
            self._stats.missed(PageState.MISSING, len(keys) - there)
        host = self._room(there)
        if not host.size:
            self._breaker.report(good=True)
            return
        with self.state.changed:
            op = self._engine.op("fetch", keys[: host.size], host, self.state.host.generation(host))
        try:
            self._engine.fetch(op)
        finally:
            request.pages = self.enter(request, op)
        self._report(op)

    def _room(self, pages: int) -> Ids:
        """Host pages to fetch into, as many as can be had; held until :meth:`enter`."""
        state = self.state
        with state.changed:
            while pages:
                host = state.try_host(pages)
                if host is not None:
                    state.host.acquire(host)
                    return host
                pages //= 2
        return np.empty(0, np.int64)

    def enter(self, request: FetchRequest, op: StorageOp) -> int:
        """Cache the leading good pages, and free the rest."""
        good = next((at for at, end in enumerate(op.results) if not end.good), len(op.results))
        state = self.state
        with state.changed:
            state.host.release(op.host)
            taken = op.host[:good]
            if good:
                end = (request.cached + good) * self._page
                state.host.free(state.tree.insert_host(request.tokens[:end], taken))
            state.host.free(op.host[good:])
            state.changed.notify_all()
        self._stats.fetches += 1
        self._stats.fetched_pages += good
        return good

    def _report(self, op: StorageOp) -> None:
        for end in op.results:
            if not end.good:
                self._stats.missed(end.state)
        down = any(end.state is PageState.FAILED for end in op.results)
        if self._breaker.report(good=not down):
            self._engine.gave_up("fetch", len(op.results), "errors in a row")
