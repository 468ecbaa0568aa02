"""Shared state of a cache: the tree, both allocators and one lock over them, and making room.

Unless stated otherwise, a method expects its caller to hold ``changed``.
"""

from collections.abc import Callable
from itertools import count
from threading import Condition, RLock
from typing import Literal

import numpy as np

from hicache_dbg.pools.allocator import OutOfPages, PageAllocator
from hicache_dbg.pools.captures import guard_for
from hicache_dbg.pools.forks import FORKED, left_to_parent
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

#: How long an allocation waits for copies in flight to finish, in seconds.
ROOM_TIMEOUT_S = 120.0


class CacheState:
    """Which pages are cached where.

    ``changed`` is the lock, notified whenever an operation ends.
    """

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
        #: Set by ``close``, under the lock: from then on nobody queues a copy.
        self.closed = False
        self._forked = False
        #: Backs a node up before the device evicts it (write-back only).
        self.before_eviction: Backup | None = None
        #: Called with a node and the number of last pages of its path that got a host copy
        #: (storage tier only).
        self.on_host_copy: OnHostCopy | None = None
        #: Return how many seconds it is worth waiting for pages that are being stored; 0 if none are.
        self.storing: Callable[[], float] = lambda: 0.0
        #: Mark the work queued so far on the caller's stream: a copy must wait for it.
        self.mark = marker(group.mirrors[0].device.device)
        #: What every copy runs under: another thread may capture a CUDA graph meanwhile.
        self.beside_captures = guard_for(group.mirrors[0].device.device)
        self._backend = backend
        self._op_ids = count(1)
        left_to_parent(self)

    def leave_to_parent(self) -> None:
        """Close the cache in a forked child: its workers stayed with the parent.

        The lock is a new one, because another thread of the parent may have held the old one.
        """
        self.changed = Condition(RLock())
        self.closed = self._forked = True

    @property
    def forked(self) -> bool:
        """Whether this is a forked child's copy of the parent's cache."""
        return self._forked

    def require_own(self) -> None:
        """Raise ``ValueError`` if this is a forked child's copy of the parent's cache."""
        if self._forked:
            raise ValueError(f"the cache {FORKED}, as do its workers; open a new one here")

    def require_open(self) -> None:
        """Raise ``ValueError`` if the cache was closed: its workers take no more copies."""
        self.require_own()
        if self.closed:
            raise ValueError("the controller was closed: its workers are gone; open a new one")

    # -- operations ---------------------------------------------------------------------------

    def begin(self, kind: Literal["backup", "load"], host: Ids, device: Ids) -> CopyOp:
        """Start an operation over all pools; its pages cannot be freed until :meth:`end`."""
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
        """Finish the operation on these pages, whether it succeeded or not."""
        self.host.release(host)
        self.device.release(device)
        self.in_flight -= 1
        self.changed.notify_all()

    # -- room ---------------------------------------------------------------------------------

    def alloc_device(self, pages: int, owner: int) -> Ids:
        """Allocate device pages, evicting others; wait for copies in flight where that helps.

        Raises:
            OutOfPages: no room can be made.
        """
        while (found := self.try_device(pages, owner)) is None:
            self.wait_for_room(pages)
        return found

    def try_device(self, pages: int, owner: int) -> Ids | None:
        """Allocate device pages, evicting others; return None if held pages prevent it."""
        short = pages - self.device.available
        if short > 0:
            self._let_go(self.tree.evict_device(short, self.before_eviction))
        return self.device.alloc(pages, owner) if pages <= self.device.available else None

    def wait_for_room(self, pages: int) -> None:
        """Wait until a copy or store in flight ends, because its pages may then be evicted.

        Raises:
            OutOfPages: nothing is in flight, or nothing ended in time.
            ValueError: the cache was closed meanwhile.
        """
        patience = ROOM_TIMEOUT_S if self.in_flight else self.storing()
        if not patience or not self.changed.wait(patience):
            raise OutOfPages(self.device.name, pages, self.device.available)
        self.require_open()

    def try_host(self, pages: int) -> Ids | None:
        """Allocate host pages, evicting others; return None if held pages prevent it."""
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
                # Under write-back, eviction is the moment at which a page gets its host copy.
                if self.on_host_copy and self.before_eviction and item.device_pages.size:
                    self.on_host_copy(item.node, item.node.pages)

    def check(self) -> None:
        """Verify that the tree and the allocators agree on what is cached.

        Takes the lock itself.
        """
        with self.changed:
            self.tree.check()
            self.device.check()
            self.host.check()
            for name, allocator, ids in (
                ("device", self.device, [node.device for node in self.tree.nodes()]),
                ("host", self.host, [node.host for node in self.tree.nodes()]),
            ):
                cached = np.concatenate([*ids, np.empty(0, dtype=np.int64)])
                if not allocator.taken(cached).all():
                    raise AssertionError(f"a cached {name} page is free")
