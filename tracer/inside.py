"""Range check of page ids or indices."""

import numpy as np

from hicache_dbg.tracer.ledger import Pages

__all__ = ["inside"]


def inside(ids: Pages, limit: int) -> bool:
    """Return whether every one of ``ids`` (int64) is in ``0 .. limit - 1``."""
    # As unsigned numbers, negative ids are the largest: one pass is enough.
    return not ids.size or bool(np.maximum.reduce(ids.view(np.uint64)) < limit)
