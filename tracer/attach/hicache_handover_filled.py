"""The slots of a request's pages that hold tokens: both ends digest these and no others."""

from dataclasses import dataclass

import numpy as np

from hicache_dbg.pools.geometry import PoolGeometry
from hicache_dbg.tracer.ledger import Flags, Pages

__all__ = ["Filled", "filled"]


@dataclass(frozen=True, slots=True)
class Filled:
    """The filled slots of each page of a request in one pool.

    The first ``slots`` of a page are filled. ``rewritten`` marks pages whose filled slots the next
    token may change: those of a ring, where slots do not belong to single tokens. Elsewhere it is
    appended.
    """

    slots: Pages
    rewritten: Flags

    def parts(self, which: Flags) -> list[tuple[int, Flags]]:
        """Group the pages in ``which`` by filled slots, ascending; empty pages are left out."""
        found = ((slots, which & (self.slots == slots)) for slots in np.unique(self.slots).tolist())
        return [(slots, pages) for slots, pages in found if slots and pages.any()]


def filled(geometry: PoolGeometry, pages: int, tokens: int) -> Filled:
    """Return what ``tokens`` tokens fill. A slot of several tokens counts when all are present."""
    left = np.clip(
        tokens - np.arange(pages) * geometry.tokens_per_page, 0, geometry.tokens_per_page
    )
    if geometry.single_slots:
        return Filled(left // geometry.tokens_per_slot, np.zeros(pages, np.bool_))
    written = left > 0
    return Filled(
        np.where(written, geometry.slots_per_page, 0), written & (left < geometry.tokens_per_page)
    )
