"""Coarse compression: one entry for 128 tokens; attention covers all entries.

An entry is computed from the 128 window entries of its tokens, read back from their page. Nothing
needs to be kept between steps, and a page holds whole groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hicache_dbg.repro.kvio import Slots
from hicache_dbg.repro.rotary import rms
from hicache_dbg.repro.v4.packed import CONTENT, ENTRY, EntryStore
from hicache_dbg.repro.v4.span import Batch, BranchStep, Chunk, Groups, attend
from hicache_dbg.repro.weights import Matrix

__all__ = ["Coarse", "CoarseLayer"]

_RATIO = 128


@dataclass(frozen=True, slots=True, eq=False)
class CoarseLayer:
    """How a layer pools: ``score`` (448, 1) weighs tokens, ``lift`` (448, 512) projects to an entry."""

    score: torch.Tensor
    lift: torch.Tensor

    @classmethod
    def draw(cls, matrix: Matrix) -> "CoarseLayer":
        """Draw the next weights of a model."""
        return cls(score=matrix(CONTENT, 1, gain=2.0), lift=matrix(CONTENT, ENTRY))


class Coarse:
    """Attention to all complete groups of 128 tokens."""

    def __init__(
        self, layers: Mapping[int, CoarseLayer], window: EntryStore, store: EntryStore
    ) -> None:
        self._layers = layers
        self._window = window
        self._store = store

    def chunk(self, chunk: Chunk) -> BranchStep:
        """See :data:`~hicache_dbg.repro.v4.span.BranchStep`."""
        groups = Groups.in_chunk(chunk, _RATIO, self._store.slots_per_page)
        places = torch.arange(chunk.end // _RATIO, device=chunk.tables.device)
        seen = chunk.slots(places, self._store.slots_per_page)
        allowed = places < (chunk.positions.unsqueeze(1) + 1) // _RATIO
        return self._step(groups, seen, allowed)

    def batch(self, batch: Batch) -> BranchStep:
        """See :data:`~hicache_dbg.repro.v4.span.BranchStep`."""
        slots_per_page = self._store.slots_per_page
        groups = Groups.in_batch(batch, _RATIO, slots_per_page)
        sequences, pages = batch.tables.shape
        places = torch.arange(pages * slots_per_page, device=batch.tables.device)
        seen = Slots.of(batch.tables, places.expand(sequences, -1), slots_per_page)
        allowed = places < (batch.positions.unsqueeze(1) + 1) // _RATIO
        return self._step(groups, seen, allowed.unsqueeze(1))

    def _step(self, groups: Groups, seen: Slots, allowed: torch.Tensor) -> BranchStep:
        tokens = groups.number.unsqueeze(1) * _RATIO + torch.arange(
            _RATIO, device=groups.number.device
        )
        members = Slots.of(groups.tables, tokens, self._window.slots_per_page)

        def step(number: int, _normed: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
            if len(groups):
                self._compress(number, groups, members)
            return attend(queries, self._store.read(number, seen), allowed)

        return step

    def _compress(self, number: int, groups: Groups, members: Slots) -> None:
        layer = self._layers[number]
        contents = self._window.read(number, members)[..., :CONTENT]  # (G, 128, 448)
        weights = (contents @ layer.score).softmax(1)
        pooled = rms((weights * contents).sum(1)) @ layer.lift
        content, roped = rms(pooled[:, :CONTENT]), groups.rotation.turn(pooled[:, CONTENT:])
        self._store.write(number, groups.slots, torch.cat((content, roped), -1))
