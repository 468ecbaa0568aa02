"""A turn's pages out of the tiers: matched, loaded back from the host, evicted under pressure."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from hicache_dbg.pools.allocator import OutOfPages
from hicache_dbg.pools.controller import HiCacheController, Match
from hicache_dbg.pools.indices import Ids
from hicache_dbg.repro.cache import Lease
from hicache_dbg.repro.workload import Turn

__all__ = ["TieredCache"]


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """What a lease holds in the controller: a locked match, and pages of its own."""

    match: Match
    own: Ids


class TieredCache:
    """Pages by way of a controller; every answered turn leaves its whole pages in the cache.

    A turn is admitted if the capacities of the turns that run leave room for its own. Prefixes
    that turns share are counted for each of them, so an admitted turn finds its pages.
    """

    def __init__(self, controller: HiCacheController) -> None:
        self.host_hit_pages = 0
        self.device_hit_pages = 0
        self._controller = controller
        self._page_size = controller.group.page_tokens
        self._room = controller.group.device_pages
        self._held: dict[Lease, _Held] = {}

    def begin(self, turn: Turn) -> Lease | None:
        """Match the turn's prompt, begin to load what is on the host only, and add new pages."""
        needed = -(-turn.capacity // self._page_size)
        if needed > self._room:
            return None
        controller = self._controller
        # The last token is always computed: its output is the first token of the reply.
        match = controller.match(turn.tokens[:-1])
        own = np.empty(0, np.int64)
        try:
            own = controller.alloc_device(needed - match.pages, owner=turn.session)
            ticket = controller.load_back(match, owner=turn.session)
        except BaseException as error:
            controller.free_device(own)
            controller.unlock(match)
            if isinstance(error, OutOfPages):
                return None
            raise
        self._room -= needed
        self.host_hit_pages += match.host_pages.size
        self.device_hit_pages += match.device_pages.size
        table = torch.from_numpy(np.concatenate((ticket.device_pages, own)))
        cached = match.pages * self._page_size
        lease = Lease(turn, cached, table, partial(controller.wait_layer, ticket=ticket))
        self._held[lease] = _Held(match, own)
        return lease

    def finish(self, lease: Lease, tokens: tuple[int, ...]) -> None:
        """Put the computed whole pages into the cache, whoever may use them; free the rest."""
        sequence = np.concatenate((lease.turn.tokens, np.array(tokens[:-1], np.int64)))
        pages = len(sequence) // self._page_size
        table = lease.table.numpy()
        held = self._held.pop(lease)
        try:
            self._controller.insert(sequence[: pages * self._page_size], table[:pages])
            self._controller.free_device(table[pages:])
        finally:
            self._release(lease, held)

    def abandon(self, lease: Lease) -> None:
        """Give the turn's own pages back."""
        held = self._held.pop(lease)
        try:
            self._controller.free_device(held.own)
        finally:
            self._release(lease, held)

    def forget(self, session: int) -> None:
        """Nothing: what a session leaves in the cache goes when the room is wanted."""

    def _release(self, lease: Lease, held: _Held) -> None:
        self._room += len(lease.table)
        self._controller.unlock(held.match)
