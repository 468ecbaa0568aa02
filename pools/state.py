"""The book of a cache: the tree, both allocators and one lock over them, and how to make room.

Unless said otherwise a method expects its caller to hold ``changed``.
"""

from collections.abc import Callable
from itertools import count
from threading import Condition, RLock
from typing import Literal

import numpy as np

from hicache_dbg.pools.allocator import OutOfPages, PageAllocator
from hicache_dbg.pools.geometry import IoBackend
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.radix import Eviction, Node, RadixTree
from hicache_dbg.pools.radix_types import Backup, Policy
from hicache_dbg.pools.stats import ControllerStats
from hicache_dbg.pools.streams import marker
from hicache_dbg.pools.transfer import CopyOp, TransferEngine

__all__ = ["CacheState"]

OnHostCopy = Callable[[Node, int], None]

#: How long an allocation waits for copies under way to end, in seconds.
ROOM_TIMEOUT_S = 120.0


class CacheState:
    """Which pages are cached where. ``changed`` is the lock, notified when an operation ends."""

    def __init__(
        self, group: PoolGroup, engine: TransferEngine, backend: IoBackend, eviction: Policy
    ) -> None:
        self.group = group
        self.engine = engine
        self.tree = RadixTree(group.page_tokens, eviction)
        self.device = PageAllocator(group.device_pages, "device")
        self.host = PageAllocator(group.host_pages, "host")
        self.changed = Condition(RLock())
        self.stats = ControllerStats()
        self.in_flight = 0
        #: Backs a page up before the device lets go of it (write-back only).
        self.before_eviction: Backup | None = None
        #: Told of the last so many pages of a path when they got their host copy (with storage only).
        self.on_host_copy: OnHostCopy | None = None
        #: Seconds worth waiting for pages that are being stored; 0 where none are, or none will be soon.
        self.storing: Callable[[], float] = lambda: 0.0
        #: Marks the work queued so far on the caller's stream: a copy must come after it.
        self.mark = marker(group.mirrors[0].device.device)
        self._backend = backend
        self._op_ids = count(1)

    # -- operations ---------------------------------------------------------------------------

    def begin(self, kind: Literal["backup", "load"], host: Ids, device: Ids) -> CopyOp:
        """An operation over all pools; its pages cannot be freed until :meth:`end`."""
        self.host.acquire(host)
        self.device.acquire(device)
        self.in_flight += 1
        return CopyOp(
            op_id=next(self._op_ids),
            kind=kind,
            copies=self.group.copies(host, device, self._backend),
            host_generations=self.host.generation(host),
            after=self.mark(),
        )

    def end(self, host: Ids, device: Ids) -> None:
        """The operation on these pages is over, one way or the other."""
        self.host.release(host)
        self.device.release(device)
        self.in_flight -= 1
        self.changed.notify_all()

    # -- room ---------------------------------------------------------------------------------

    def alloc_device(self, pages: int, owner: int) -> Ids:
        """Device pages, others evicted for them; waits for copies under way where that helps."""
        while (found := self.try_device(pages, owner)) is None:
            self.wait_for_room(pages)
        return found

    def try_device(self, pages: int, owner: int) -> Ids | None:
        """Device pages, others evicted for them; None where held pages stand in the way."""
        short = pages - self.device.available
        if short > 0:
            self._let_go(self.tree.evict_device(short, self.before_eviction))
        return self.device.alloc(pages, owner) if pages <= self.device.available else None

    def wait_for_room(self, pages: int) -> None:
        """Wait until a copy or a store under way ends, for its pages may then go; else there is no hope."""
        patience = ROOM_TIMEOUT_S if self.in_flight else self.storing()
        if not patience or not self.changed.wait(patience):
            raise OutOfPages(self.device.name, pages, self.device.available)

    def try_host(self, pages: int) -> Ids | None:
        """Host pages, others evicted for them; None where held pages stand in the way."""
        short = pages - self.host.available
        if short > 0:
            evictions = self.tree.evict_host(short)
            self.stats.evicted_host_pages += sum(item.host_pages.size for item in evictions)
            self._let_go(evictions)
        return self.host.alloc(pages) if pages <= self.host.available else None

    def _let_go(self, evictions: list[Eviction]) -> None:
        for item in evictions:
            self.device.free(item.device_pages)
            self.host.free(item.host_pages)
            if item.removed:
                self.stats.dropped_pages += item.device_pages.size
            else:
                self.stats.demoted_pages += item.device_pages.size
                # Under write-back this is when a page has got its host copy.
                if self.on_host_copy and self.before_eviction and item.device_pages.size:
                    self.on_host_copy(item.node, item.node.pages)

    def check(self) -> None:
        """Verify that tree and allocators agree on what is cached (takes the lock itself)."""
        with self.changed:
            self.tree.check()
            self.device.check()
            self.host.check()
            for name, allocator, ids in (
                ("device", self.device, [node.device for node in self.tree.nodes()]),
                ("host", self.host, [node.host for node in self.tree.nodes()]),
            ):
                cached = np.concatenate([*ids, np.empty(0, dtype=np.int64)])
                if np.unique(cached).size != cached.size or not allocator.taken(cached).all():
                    raise AssertionError(f"a cached {name} page is free, or cached twice")
