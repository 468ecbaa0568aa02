"""What the caches of ``hicache_dbg.pools`` hold, and the outcomes of their lookups."""

import weakref
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hicache_dbg.pools.lookups import ENDS
from hicache_dbg.pools.storage.stats import MISSES
from hicache_dbg.tracer.events import Tier
from hicache_dbg.tracer.sink import LookedUp, PoolPages, PoolState

if TYPE_CHECKING:
    from hicache_dbg.pools.controller import HiCacheController
    from hicache_dbg.pools.stats import ControllerStats
    from hicache_dbg.pools.storage.stats import StorageStats

__all__ = ["PoolStates"]


class PoolStates:
    """The state of all controllers of this process, read on demand.

    Pages are those of live controllers. Lookups stay counted after a controller is gone, so a total
    never falls.
    """

    def __init__(self) -> None:
        self._controllers: weakref.WeakSet[HiCacheController] = weakref.WeakSet()
        self._asked: list[ControllerStats] = []
        self._stored: list[StorageStats] = []

    def add(self, controller: "HiCacheController") -> None:
        """Include a controller."""
        self._controllers.add(controller)
        self._asked.append(controller.stats)
        if controller.storage is not None:
            self._stored.append(controller.storage.stats)

    def read(self) -> Iterator[PoolState]:
        """Yield pages by pool, tier and state, and lookups by tier and outcome, zeros included."""
        for where, count in self._pages().items():
            yield PoolPages(*where, count)
        for tier, ends in ENDS.items() if self._asked else ():
            for end in ends:
                yield LookedUp(tier, end, sum(stats.lookups[tier, end] for stats in self._asked))
        if self._stored:
            storage = Tier.STORAGE.value
            yield LookedUp(storage, "hit", sum(stats.given_pages for stats in self._stored))
            for why in MISSES:
                missed = sum(stats.misses.get(why, 0) for stats in self._stored)
                yield LookedUp(storage, why, missed)

    def _pages(self) -> Counter[tuple[str, str, str]]:
        pages = Counter[tuple[str, str, str]]()
        for controller in tuple(self._controllers):
            for mirror in controller.group.mirrors:
                for tier, pool in ((Tier.DEVICE, mirror.device), (Tier.HOST, mirror.host)):
                    free = controller.allocators[tier.value].available
                    pages[mirror.name, tier.value, "free"] += free
                    pages[mirror.name, tier.value, "used"] += pool.pages - free
        return pages
