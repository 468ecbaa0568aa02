"""Which slots of a request's pages mean something: those both ends digest, and no others."""

from dataclasses import dataclass

import numpy as np

from hicache_dbg.pools.geometry import PoolGeometry
from hicache_dbg.tracer.ledger import Flags, Pages

__all__ = ["Filled", "filled"]


@dataclass(frozen=True, slots=True)
class Filled:
    """What tokens fill of a request's pages in one pool, page by page.

    The first ``slots`` of a page are filled. ``rewritten`` are pages in which the next token may
    change filled ones: of a ring, where a slot belongs to no one token. Elsewhere it goes behind them.
    """

    slots: Pages
    rewritten: Flags

    def parts(self, which: Flags) -> list[tuple[int, Flags]]:
        """Of ``which`` the pages of equal slots, those of fewer first; empty ones are left out."""
        found = ((slots, which & (self.slots == slots)) for slots in np.unique(self.slots).tolist())
        return [(slots, pages) for slots, pages in found if slots and pages.any()]


def filled(geometry: PoolGeometry, pages: int, tokens: int) -> Filled:
    """What ``tokens`` tokens fill; a slot counts when all of its tokens are there."""
    left = np.clip(
        tokens - np.arange(pages) * geometry.tokens_per_page, 0, geometry.tokens_per_page
    )
    if geometry.single_slots:
        return Filled(left // geometry.tokens_per_slot, np.zeros(pages, np.bool_))
    written = left > 0
    return Filled(
        np.where(written, geometry.slots_per_page, 0), written & (left < geometry.tokens_per_page)
    )
