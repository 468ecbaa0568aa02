"""The index says that a page is there, and it is not any more."""

from collections.abc import Callable

import numpy as np

from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.state import CacheState
from hicache_dbg.repro.faults.base import Fault, Target, inside
from hicache_dbg.repro.faults.places import OTHER_OWNER, overwrite, put
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULTS"]


def _given_away_after(backups: int, lost: Callable[[list[Ids]], Ids]) -> Callable[[Target], None]:
    """At the end of the n-th backup resting host pages go to another owner; the tree keeps them."""

    def install(target: Target) -> None:
        state, group = inside(target.controller), target.controller.group
        stored: list[Ids] = []

        def end(host: Ids, device: Ids) -> None:
            CacheState.end(state, host, device)
            stored.append(host)
            if len(stored) != backups:
                return
            pages = lost(stored)
            state.host.free(pages)
            overwrite(group.host.values(), state.host.alloc(pages.size, OTHER_OWNER))
            target.harmed(pages)

        put(state, "end", end)

    return install


FAULTS = (
    Fault(
        name="index_keeps_an_evicted_page",
        cls=FaultClass.STALE_INDEX,
        summary="a host page is evicted and reused, and the prefix tree goes on offering it",
        install=_given_away_after(1, lambda stored: stored[0][-1:]),
    ),
    Fault(
        name="index_not_told_of_a_flush",
        cls=FaultClass.STALE_INDEX,
        summary="the host tier is cleared and refilled by others, and the prefix tree is not told",
        install=_given_away_after(2, np.concatenate),
    ),
)
