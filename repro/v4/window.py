"""The sliding window: one entry per token; attention covers the latest few."""

import torch

from hicache_dbg.repro.kvio import Slots
from hicache_dbg.repro.model import BLOCK
from hicache_dbg.repro.rotary import rms
from hicache_dbg.repro.v4.packed import CONTENT, EntryStore
from hicache_dbg.repro.v4.span import Batch, BranchStep, Chunk, attend

__all__ = ["Window"]


class Window:
    """Attention to the last ``width`` tokens; ``weights`` (model width, 512) is one per layer."""

    def __init__(self, store: EntryStore, weights: tuple[torch.Tensor, ...], width: int) -> None:
        self._store = store
        self._weights = weights
        self._width = width

    def chunk(self, chunk: Chunk) -> BranchStep:
        """See :data:`~hicache_dbg.repro.v4.span.BranchStep`."""
        first = max(0, chunk.start - self._width + 1)
        near = torch.arange(first, chunk.end, device=chunk.tables.device)
        own = chunk.slots(chunk.positions, self._store.slots_per_page)
        seen = chunk.slots(near, self._store.slots_per_page)

        def step(number: int, normed: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
            self._write(number, own, chunk, normed)
            entries = self._store.read(number, seen)
            found = []
            for begin in range(chunk.start, chunk.end, BLOCK):
                asking = chunk.positions[begin - chunk.start :][:BLOCK]
                reach = slice(max(0, begin - self._width + 1 - first), begin + len(asking) - first)
                back = asking.unsqueeze(1) - near[reach]
                allowed = (back >= 0) & (back < self._width)
                block = queries[:, begin - chunk.start :][:, :BLOCK]
                found.append(attend(block, entries[reach], allowed))
            return torch.cat(found, 1)

        return step

    def batch(self, batch: Batch) -> BranchStep:
        """See :data:`~hicache_dbg.repro.v4.span.BranchStep`."""
        page = self._store.slots_per_page
        own = Slots.of(batch.tables, batch.positions.unsqueeze(1), page).flat()
        back = torch.arange(self._width, device=batch.tables.device)
        near = batch.positions.unsqueeze(1) - back
        allowed = (near >= 0).unsqueeze(1)
        seen = Slots.of(batch.tables, near.clamp(min=0), page)

        def step(number: int, normed: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
            self._write(number, own, batch, normed)
            return attend(queries, self._store.read(number, seen), allowed)

        return step

    def _write(self, number: int, slots: Slots, span: Chunk | Batch, normed: torch.Tensor) -> None:
        entries = normed @ self._weights[number]
        content, roped = entries[:, :CONTENT], entries[:, CONTENT:]
        turned = span.rotation.turn(roped)
        self._store.write(number, slots, torch.cat((rms(content), turned), -1))
