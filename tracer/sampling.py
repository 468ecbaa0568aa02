"""Choose the pages digested under ``checksum=sample``; the choice is the same everywhere."""

import numpy as np
import numpy.typing as npt

from hicache_dbg.tracer.ledger import Pages

__all__ = ["chosen"]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def chosen(pages: Pages, generations: Pages, share: float) -> npt.NDArray[np.bool_]:
    """Mark about ``share`` of the pages, by a hash of (page, generation).

    A page's content in one generation is checked on every load or on none, so a sampled page that
    was witnessed is also compared. The mixer is SplitMix64's finalizer (Steele, Lea and Flood,
    2014).
    """
    mixed = pages.astype(np.uint64) * _ODD + generations.astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX[0]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX[1]
    mixed ^= mixed >> np.uint64(31)
    return mixed / np.float64(2**64) < share
