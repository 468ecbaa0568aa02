"""Which host pages are at rest: written and acknowledged, and not begun to be written since.

Pure bookkeeping on ints. A page that is written again, or is given to somebody else, is no longer
what was noted; whoever reads it without a lock has to ask again afterwards.
"""

import numpy as np

from hicache_dbg.tracer.ledger import Pages

__all__ = ["Resting"]

NEVER = -1


class Resting:
    """The pages of one host pool, visited in turn."""

    def __init__(self, pages: int) -> None:
        self._generations = np.full(pages, NEVER, np.int64)
        self._writes = np.full(pages, NEVER, np.int64)
        self._next = 0

    def note(self, pages: Pages, generations: Pages, writes: Pages) -> None:
        """``pages`` were written, in these lives, by the writes of these numbers."""
        self._generations[pages] = generations
        self._writes[pages] = writes

    def forget(self, pages: Pages) -> None:
        """What is on ``pages`` is not what was written: it was told, or nobody knows."""
        self._writes[pages] = NEVER

    def turn(self, most: int) -> tuple[Pages, Pages, Pages]:
        """The next ``most`` pages that were noted, their lives and writes; the last is followed by the first."""
        known = np.flatnonzero(self._writes != NEVER).astype(np.int64)
        start = int(np.searchsorted(known, self._next))
        pages = np.roll(known, -start)[:most]
        if pages.size:
            self._next = int(pages[-1]) + 1
        return pages, self._generations[pages], self._writes[pages]
