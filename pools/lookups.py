"""Outcomes of the pages that requests look up, each counted once, when its request unlocks."""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.ticket import LoadTicket

__all__ = ["ENDS", "count_lookup"]

#: Outcomes by the tier that had the page, ``none`` if no tier had it. ``no_room`` pages found no
#: place on the device and ``failed`` pages did not load; both must be recomputed. ``unused`` pages
#: were matched but never loaded.
ENDS: dict[str, tuple[str, ...]] = {
    "device": ("hit",),
    "host": ("hit", "no_room", "failed", "unused"),
    "none": ("not_cached",),
}


def count_lookup(
    counts: Counter[tuple[str, str]],
    *,
    asked: int,
    device: Ids,
    host: Ids,
    ticket: LoadTicket | None,
    no_room: bool,
) -> None:
    """Add the outcomes of one request's lookup of ``asked`` pages to ``counts``.

    ``device`` and ``host`` are the pages found in each tier.
    """
    counts["device", "hit"] += device.size
    counts["none", "not_cached"] += asked - device.size - host.size
    if ticket is None:
        counts["host", "no_room" if no_room else "unused"] += host.size
        return
    failed = _among(host, (load.host for load in ticket.loads if load.error is not None))
    counts["host", "failed"] += failed
    counts["host", "hit"] += host.size - failed


def _among(pages: Ids, loads: Iterable[Ids]) -> int:
    """Return how many of ``pages`` occur in one of ``loads``."""
    return sum(int(np.isin(pages, load).sum()) for load in loads)
