"""What the branches of the attention share: token positions, groups of tokens, and attending."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hicache_dbg.repro.kvio import Slots
from hicache_dbg.repro.rotary import Rotation
from hicache_dbg.repro.v4.packed import CONTENT, ROPE

__all__ = ["Batch", "BranchStep", "Chunk", "Groups", "attend"]

BranchStep = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]
"""Called with a layer's number, the normed hidden states (R, width) and the queries: caches what
the branch keeps and returns what the queries found. Queries are (heads, T, 512) of a chunk and
(N, heads, 512) of a batch; what is found has 448 values in their place."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Tokens of one sequence; ``positions`` (T,) go from ``start`` to before ``end``."""

    start: int
    end: int
    tables: torch.Tensor
    positions: torch.Tensor
    rotation: Rotation

    @classmethod
    def of(cls, start: int, count: int, table: torch.Tensor) -> "Chunk":
        """Take the ``count`` tokens from ``start`` on; ``table`` is (P,), ``tables`` (1, P)."""
        positions = torch.arange(start, start + count, device=table.device)
        rotation = Rotation.of(positions, ROPE)
        return cls(start, start + count, table.unsqueeze(0), positions, rotation)

    def slots(self, positions: torch.Tensor, slots_per_page: int) -> Slots:
        """Return the slots of entries ``positions`` (C,) of the sequence."""
        return Slots.of(self.tables, positions.unsqueeze(0), slots_per_page).flat()


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One token of each of N sequences, at ``positions`` (N,); ``tables`` is (N, P)."""

    positions: torch.Tensor
    tables: torch.Tensor
    rotation: Rotation

    @classmethod
    def of(cls, positions: torch.Tensor, tables: torch.Tensor) -> "Batch":
        """Compute the rotation for the positions."""
        return cls(positions, tables, Rotation.of(positions, ROPE))


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Groups of tokens that are complete now, each of which gets an entry: G in all.

    ``tables`` (G, P) are those of their sequences; group ``number`` (G,) of a sequence begins at
    token ``number * ratio``. ``slots`` (G,) is where their entries go.
    """

    tables: torch.Tensor
    number: torch.Tensor
    slots: Slots
    rotation: Rotation

    @classmethod
    def in_chunk(cls, chunk: Chunk, ratio: int, slots_per_page: int) -> "Groups":
        """Return the groups completed by the tokens of ``chunk``."""
        device = chunk.tables.device
        number = torch.arange(chunk.start // ratio, chunk.end // ratio, device=device)
        return cls._of(chunk.tables.expand(len(number), -1), number, ratio, slots_per_page)

    @classmethod
    def in_batch(cls, batch: Batch, ratio: int, slots_per_page: int) -> "Groups":
        """Return the groups completed by the tokens of ``batch``."""
        (owner,) = torch.nonzero((batch.positions + 1) % ratio == 0, as_tuple=True)
        number = batch.positions[owner] // ratio
        return cls._of(batch.tables[owner], number, ratio, slots_per_page)

    @classmethod
    def _of(
        cls, tables: torch.Tensor, number: torch.Tensor, ratio: int, slots_per_page: int
    ) -> "Groups":
        slots = Slots.of(tables, number.unsqueeze(1), slots_per_page).flat()
        return cls(tables, number, slots, Rotation.of(number * ratio, ROPE))

    def __len__(self) -> int:
        return len(self.number)


def attend(queries: torch.Tensor, entries: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Attend to the ``allowed`` ones of C entries, which serve as both keys and values.

    An attention sink of logit 0 without a value takes part, so that a query without any entry
    yields zeros.

    Args:
        queries: (.., Q, 512).
        entries: (.., C, 512).
        allowed: (.., Q or 1, C).
    """
    logits = (queries @ entries.transpose(-1, -2)).masked_fill_(~allowed, -torch.inf)
    sink = logits.new_zeros((*logits.shape[:-1], 1))
    weights = torch.cat((logits, sink), -1).softmax(-1)[..., :-1]
    return weights @ entries[..., :CONTENT]
