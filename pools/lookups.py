"""What became of the pages that readers asked for: each is counted once, when its reader lets go."""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.ticket import LoadTicket

__all__ = ["ENDS", "count_lookup"]

#: By the tier that had the page, ``none`` if none had: ``no_room`` found no place on the device and
#: ``failed`` did not come back, both to be computed again; ``unused`` were not asked for further.
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
    """Add the ``asked`` pages of a reader, of which ``device`` and ``host`` are those found there."""
    counts["device", "hit"] += device.size
    counts["none", "not_cached"] += asked - device.size - host.size
    if ticket is None:
        counts["host", "no_room" if no_room else "unused"] += host.size
        return
    failed = _among(host, (load.host for load in ticket.loads if load.error is not None))
    counts["host", "failed"] += failed
    counts["host", "hit"] += host.size - failed


def _among(pages: Ids, loads: Iterable[Ids]) -> int:
    """How many of ``pages`` are in one of ``loads``."""
    return sum(int(np.isin(pages, load).sum()) for load in loads)
