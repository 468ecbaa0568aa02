"""Storage to host: prefetch the pages that continue a cached prefix, before a match asks for them."""

import time
from collections import Counter
from collections.abc import Mapping
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
    """A request for the ``wanted`` pages that follow the first ``cached`` pages of ``tokens``.

    The node of the cached prefix stays locked meanwhile. ``pages`` counts the pages gained,
    ``misses`` the others by reason.
    """

    node: Node
    tokens: bytes
    cached: int
    wanted: int
    given_up: bool = False
    begun: float = 0.0
    pages: int = 0
    misses: Counter[str] = field(default_factory=Counter)
    done: Event = field(default_factory=Event)


class Fetches:
    """Executes fetches on a worker; the reader waits for a bounded time.

    A page counts once the bytes of all its pools have arrived and are good. Pages that arrive too
    late for their reader are cached all the same.
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
        self._told = False
        self._page = state.group.page_tokens * TOKEN_BYTES

    def prefetch(self, tokens: Tokens, timeout: float) -> int:
        """Fetch what continues the cached prefix of ``tokens``; return the pages gained in ``timeout`` s.

        Raises:
            ValueError: the cache was closed.
        """
        request = self._request(encode(tokens))
        if request is None:
            return 0
        if not request.done.wait(timeout):
            request.given_up = True
            self._count(0, {"timeout": request.wanted})
            self._tell_if_asked(request, timeout)
            return 0
        self._count(request.pages, request.misses)
        return request.pages

    def _tell_if_asked(self, request: FetchRequest, timeout: float) -> None:
        """Blame the store if it had enough time: the request was not just queued behind others."""
        patience = max(timeout, self._worker.patience_s)
        if request.begun and time.monotonic() - request.begun > patience / 2:
            self._told = True
            self._breaker.report(good=False)
            self._engine.gave_up("fetch", 1, f"no answer within {timeout} s")

    def _is_stuck(self) -> bool:
        """Return whether a fetch hangs; report it once, unless its reader already has."""
        late = self._worker.late
        if late and not self._told:
            self._engine.gave_up("fetch", 1, f"no answer within {self._worker.patience_s} s")
        self._told = late
        return late

    def _count(self, given: int, misses: Mapping[str, int]) -> None:
        """Count each page of a request exactly once."""
        with self.state.changed:  # several readers may ask
            self._stats.given_pages += given
            for why, pages in misses.items():
                self._stats.missed(why, pages)

    def _request(self, tokens: bytes) -> FetchRequest | None:
        """Submit a request for what is missing; None if nothing is, or the store is not asked."""
        state = self.state
        with state.changed:
            state.require_open()  # closing ends the worker: a later task would never run
            node, cached = state.tree.find(tokens)
            wanted = len(tokens) // self._page - cached
            if not wanted:
                return None
            self._stats.asked_pages += wanted
            if self._is_stuck() or not self._breaker.allows():
                self._stats.missed(PageState.UNAVAILABLE, wanted)
                return None
            state.tree.lock(node)
            end = (cached + wanted) * self._page
            request = FetchRequest(node, tokens[:end], cached, wanted)
            self._worker.submit(lambda: self._carry_out(request))
            return request

    def _carry_out(self, request: FetchRequest) -> None:
        try:
            if not request.given_up:
                request.begun = time.monotonic()
                self._fetch(request)
        except Exception:  # noqa: BLE001 (whatever a store raises is a miss to its reader)
            self._failed(request)
        finally:
            with self.state.changed:
                self.state.tree.unlock(request.node)
            request.done.set()

    def _failed(self, request: FetchRequest) -> None:
        ended = request.pages + request.misses.total()
        request.misses[PageState.FAILED.value] += request.wanted - ended
        if self._breaker.report(good=False):
            self._engine.gave_up("fetch", 1, "errors in a row")

    def _fetch(self, request: FetchRequest) -> None:
        keys = self._engine.keys(request.tokens)[request.cached :]
        there = self._engine.present(keys)
        request.misses[PageState.MISSING.value] += len(keys) - there
        host = self._room(there)
        request.misses["no_room"] += there - host.size
        if not host.size:
            self._breaker.report(good=True)
            return
        with self.state.changed:
            op = self._engine.op("fetch", keys[: host.size], host, self.state.host.generation(host))
        try:
            self._engine.fetch(op)
        finally:
            request.pages = self.enter(request, op)
        self._report(request, op)

    def _room(self, pages: int) -> Ids:
        """Allocate up to ``pages`` host pages to fetch into; they are held until :meth:`enter`."""
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
        """Insert the leading good pages into the cache and free the others; return how many are good."""
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

    def _report(self, request: FetchRequest, op: StorageOp) -> None:
        for end in op.results[request.pages :]:
            request.misses["behind" if end.good else end.state.value] += 1
        down = any(end.state is PageState.FAILED for end in op.results)
        if self._breaker.report(good=not down):
            self._engine.gave_up("fetch", len(op.results), "errors in a row")
