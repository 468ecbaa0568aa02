"""Digests slot by slot, on demand: which tokens of a page differ between two places."""

import numpy as np

from hicache_dbg.tracer.probe import Digester
from hicache_dbg.tracer.view import View

__all__ = ["differing_slots", "slot_digests", "tile_digest"]

Tile = tuple[View, int, int]  # view, layer, page


def tile_digest(digester: Digester, view: View, layer: int, page: int) -> int:
    """Return the digest of a whole tile as it is now."""
    digests = digester.digest(view, (layer,), np.array([page], np.int64))
    digester.join()
    return int(digests[0, 0])


def slot_digests(digester: Digester, view: View, layer: int, page: int) -> list[int]:
    """Return the digest of each slot of a tile as it is now, in slot order."""
    at = np.array([page], np.int64)
    parts = [
        digester.digest(view, (layer,), at, slot, slot + 1) for slot in range(view.slots_per_page)
    ]
    digester.join()
    return [int(part[0, 0]) for part in parts]


def differing_slots(digester: Digester, one: Tile, other: Tile) -> list[int]:
    """Return the slots whose bytes differ between two tiles of one shape."""
    here, there = (slot_digests(digester, *tile) for tile in (one, other))
    return [slot for slot, (a, b) in enumerate(zip(here, there, strict=True)) if a != b]
