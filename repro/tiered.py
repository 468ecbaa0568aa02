"""A turn's pages from the tiers: matched, loaded back from the host, evicted under pressure."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from hicache_dbg.pools.allocator import OutOfPages
from hicache_dbg.pools.controller import HiCacheController, Match
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.ticket import LoadTicket
from hicache_dbg.repro.cache import Lease
from hicache_dbg.repro.kernels import Kernels, Untold
from hicache_dbg.repro.workload import Turn

__all__ = ["TieredCache"]


def _as_it_is(table: torch.Tensor) -> torch.Tensor:
    return table


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """What a lease holds in the controller: a locked match, all its pages, and its own new pages."""

    match: Match
    pages: Ids
    own: Ids


class TieredCache:
    """Leases pages through a controller; every answered turn leaves its whole pages in the cache.

    A turn is admitted if the capacities of the running turns leave room for its own. Shared
    prefixes count for each turn, so an admitted turn always finds its pages. ``upload`` turns the
    host's page table into the device's; ``kernels`` is told what the model touches.
    """

    def __init__(
        self,
        controller: HiCacheController,
        upload: Callable[[torch.Tensor], torch.Tensor] = _as_it_is,
        kernels: Kernels | None = None,
    ) -> None:
        self.host_hit_pages = 0
        self.device_hit_pages = 0
        self._controller = controller
        self._upload = upload
        self._kernels = kernels or Untold()
        self._page_size = controller.group.page_tokens
        self._room = controller.group.device_pages
        self._held: dict[Lease, _Held] = {}

    def begin(self, turn: Turn) -> Lease | None:
        """Match the turn's prompt, start loading its host-only part, and allocate new pages."""
        needed = -(-turn.capacity // self._page_size)
        if needed > self._room:
            return None
        controller = self._controller
        # The last token is always computed: its output is the first token of the reply.
        controller.prefetch(turn.tokens[:-1])
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
        pages = np.concatenate((ticket.device_pages, own))
        table = self._upload(torch.from_numpy(pages))
        cached = match.pages * self._page_size
        lease = Lease(turn, cached, table, partial(self._gate, ticket, pages[: match.pages]))
        self._held[lease] = _Held(match, pages, own)
        return lease

    def _gate(self, ticket: LoadTicket, cached: Ids, layer: int) -> None:
        """Wait for a layer of the cached pages, then report the model's read of it."""
        self._controller.wait_layer(layer, ticket)
        self._kernels.read(layer, cached)

    def finish(self, lease: Lease, tokens: tuple[int, ...]) -> None:
        """Insert the computed whole pages into the cache and free the rest."""
        sequence = np.concatenate((lease.turn.tokens, np.array(tokens[:-1], np.int64)))
        pages = len(sequence) // self._page_size
        held = self._held.pop(lease)
        self._kernels.write(held.own)
        try:
            self._controller.insert(sequence[: pages * self._page_size], held.pages[:pages])
            self._controller.free_device(held.pages[pages:])
        finally:
            self._release(lease, held)

    def abandon(self, lease: Lease) -> None:
        """Free the turn's own pages."""
        held = self._held.pop(lease)
        self._kernels.write(held.own)  # it may have written some of them
        try:
            self._controller.free_device(held.own)
        finally:
            self._release(lease, held)

    def forget(self, session: int) -> None:
        """Do nothing: a session's cached pages are evicted when room is needed."""

    def _release(self, lease: Lease, held: _Held) -> None:
        self._room += len(lease.table)
        self._controller.unlock(held.match)
