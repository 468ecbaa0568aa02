"""Whether page ids, or indices, are ones that there are."""

import numpy as np

from hicache_dbg.tracer.ledger import Pages

__all__ = ["inside"]


def inside(ids: Pages, limit: int) -> bool:
    """Whether each of ``ids`` (int64) is one of ``0 .. limit - 1``."""
    # As unsigned numbers negative ones are the greatest: one look at each.
    return not ids.size or bool(np.maximum.reduce(ids.view(np.uint64)) < limit)
