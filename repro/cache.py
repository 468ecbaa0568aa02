"""Where a turn's pages come from: the tiers, or for the ground truth a device that holds all."""

from dataclasses import dataclass
from typing import Protocol

import torch

from hicache_dbg.repro.model import LayerGate, open_gate
from hicache_dbg.repro.workload import Turn

__all__ = ["Cache", "Lease", "ResidentCache"]


@dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """The pages of a running turn.

    ``cached`` tokens are valid, or will be once ``gate(layer)`` has returned for the layer to be
    read. ``table`` holds the page ids, int64, for the turn's full capacity.
    """

    turn: Turn
    cached: int
    table: torch.Tensor
    gate: LayerGate = open_gate


class Cache(Protocol):
    """What a scheduler needs from a cache."""

    def begin(self, turn: Turn) -> Lease | None:
        """Lease the turn's pages; return None if there is no room for them now."""
        ...

    def finish(self, lease: Lease, tokens: tuple[int, ...]) -> None:
        """End the lease of an answered turn.

        ``tokens`` is the reply; its last token was never fed back, so it has no cache entry.
        """
        ...

    def abandon(self, lease: Lease) -> None:
        """End the lease of a failed turn; what it computed is discarded."""
        ...

    def forget(self, session: int) -> None:
        """Take note that the session is over."""
        ...


class ResidentCache:
    """Keeps each session's pages on the device until it ends; nothing is shared or moved."""

    def __init__(self, pages: int, page_size: int) -> None:
        self._page_size = page_size
        self._free = list(range(pages))
        self._kept: dict[int, tuple[int, list[int]]] = {}

    def begin(self, turn: Turn) -> Lease | None:
        """Extend the session's own pages to the turn's capacity."""
        cached, pages = self._kept.get(turn.session, (0, []))
        missing = -(-turn.capacity // self._page_size) - len(pages)
        if missing > len(self._free):
            return None
        self._kept.pop(turn.session, None)
        pages = pages + [self._free.pop() for _ in range(missing)]
        return Lease(turn, cached, torch.tensor(pages))

    def finish(self, lease: Lease, tokens: tuple[int, ...]) -> None:
        """Keep the session's pages for its next turn."""
        computed = len(lease.turn.tokens) + len(tokens) - 1
        self._kept[lease.turn.session] = (computed, lease.table.tolist())

    def abandon(self, lease: Lease) -> None:
        """Free the session's pages."""
        self._free.extend(lease.table.tolist())

    def forget(self, session: int) -> None:
        """Free the session's pages, if it has any left."""
        _, pages = self._kept.pop(session, (0, []))
        self._free.extend(pages)
