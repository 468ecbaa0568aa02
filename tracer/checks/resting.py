"""Which host pages are at rest: written and acknowledged, with no write begun since.

Pure bookkeeping on ints. A page that is written again or reallocated is no longer what was noted;
whoever reads it without a lock must check again afterwards.
"""

import numpy as np

from hicache_dbg.tracer.ledger import Pages

__all__ = ["Resting"]

NEVER = -1


class Resting:
    """The resting pages of one host pool, visited in turn."""

    def __init__(self, pages: int) -> None:
        self._generations = np.full(pages, NEVER, np.int64)
        self._writes = np.full(pages, NEVER, np.int64)
        self._next = 0

    def note(self, pages: Pages, generations: Pages, writes: Pages) -> None:
        """Note ``pages`` as written, with these generations and write counts."""
        self._generations[pages] = generations
        self._writes[pages] = writes

    def forget(self, pages: Pages) -> None:
        """Drop ``pages`` whose content is wrong or unknown."""
        self._writes[pages] = NEVER

    def turn(self, most: int) -> tuple[Pages, Pages, Pages]:
        """Return the next ``most`` noted pages, their generations and write counts, cyclically."""
        known = np.flatnonzero(self._writes != NEVER).astype(np.int64)
        start = int(np.searchsorted(known, self._next))
        pages = np.roll(known, -start)[:most]
        if pages.size:
            self._next = int(pages[-1]) + 1
        return pages, self._generations[pages], self._writes[pages]
