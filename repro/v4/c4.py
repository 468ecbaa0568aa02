"""Fine compression: one entry for four tokens; an indexer selects the entries to attend to.

An entry is pooled from eight tokens: its own four and the four before them. Its own tokens
contribute one part of their compressor states, the others the other part, weighted value by value.
The states of the latest tokens are kept in a ring: what follows a loaded page starts from the
states of that page's last four tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hicache_dbg.repro.indexer import RaggedPages, chosen, index_scores, index_scores_by_page
from hicache_dbg.repro.kvio import IndexStore, Slots
from hicache_dbg.repro.model import BLOCK
from hicache_dbg.repro.rotary import rms
from hicache_dbg.repro.v4.packed import CONTENT, ENTRY, EntryStore, StateStore
from hicache_dbg.repro.v4.span import Batch, BranchStep, Chunk, Groups, attend
from hicache_dbg.repro.weights import Matrix

__all__ = ["Fine", "FineLayer", "FineStores"]

_RATIO = 4
_MEMBERS = 2 * _RATIO
_PARTS = 4  # value of the older and of the own group, score of the older and of the own group
_RANK = 32  # the states of a token are a product of two thin matrices: 2,048 values are many
_INDEX_HEADS = 2
_INDEX_DIM = 128


@dataclass(frozen=True, slots=True, eq=False)
class FineLayer:
    """One layer's matrices, each of shape (in, out)."""

    state_in: torch.Tensor
    state_out: torch.Tensor
    index_query: torch.Tensor
    index_key: torch.Tensor
    index_gate: torch.Tensor

    @classmethod
    def draw(cls, width: int, matrix: Matrix) -> "FineLayer":
        """Draw the next weights of a model of ``width``."""
        return cls(
            state_in=matrix(width, _RANK),
            state_out=matrix(_RANK, _PARTS * ENTRY),
            index_query=matrix(width, _INDEX_HEADS * _INDEX_DIM),
            index_key=matrix(CONTENT, _INDEX_DIM),
            index_gate=matrix(width, _INDEX_HEADS),
        )


@dataclass(frozen=True, slots=True, eq=False)
class FineStores:
    """The three pools of the branch; ``own`` maps the model's layer numbers to the pools'."""

    entries: EntryStore
    states: StateStore
    index: IndexStore
    own: Mapping[int, int]


class Fine:
    """Attention to the ``top_k`` best complete groups of four tokens."""

    def __init__(self, layers: Mapping[int, FineLayer], stores: FineStores, top_k: int) -> None:
        self._layers = layers
        self._stores = stores
        self._top_k = top_k
        self._slots_per_page = stores.entries.slots_per_page

    # -- a chunk --------------------------------------------------------------------------------

    def chunk(self, chunk: Chunk) -> BranchStep:
        """See :data:`~hicache_dbg.repro.v4.span.BranchStep`."""
        groups = Groups.in_chunk(chunk, _RATIO, self._slots_per_page)
        states = _ChunkStates.of(chunk, groups, self._stores.states)
        places = torch.arange(chunk.end // _RATIO, device=chunk.tables.device)
        seen = chunk.slots(places, self._slots_per_page)
        pages = chunk.tables[0, : -(-len(places) // self._slots_per_page)]

        def step(number: int, normed: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
            members = states.keep(number, self._states(number, normed))
            self._compress(number, groups, members, states.present)
            asked = self._asked(number, normed, chunk)
            keys = self._stores.index.read(self._stores.own[number], pages).flatten(0, 1)
            return self._by_blocks(
                chunk, asked, queries, keys, self._stores.entries.read(number, seen)
            )

        return step

    def _by_blocks(
        self,
        chunk: Chunk,
        asked: "_Asked",
        queries: torch.Tensor,
        keys: torch.Tensor,
        entries: torch.Tensor,
    ) -> torch.Tensor:
        found = []
        for first in range(0, chunk.end - chunk.start, BLOCK):
            block = slice(first, first + BLOCK)
            positions = chunk.positions[block]
            seen = (chunk.start + first + len(positions)) // _RATIO
            if seen:
                last = (positions + 1) // _RATIO - 1
                scores = index_scores(asked.queries[block], asked.gates[block], keys[:seen], last)
                allowed = chosen(scores, self._top_k)
            else:
                allowed = keys.new_zeros((len(positions), 0), dtype=torch.bool)
            found.append(attend(queries[:, block], entries[:seen], allowed))
        return torch.cat(found, 1)

    # -- a batch --------------------------------------------------------------------------------

    def batch(self, batch: Batch) -> BranchStep:
        """See :data:`~hicache_dbg.repro.v4.span.BranchStep`."""
        stores = self._stores
        groups = Groups.in_batch(batch, _RATIO, self._slots_per_page)
        tokens = _members(groups)
        ring = stores.states.slots(groups.tables, tokens.clamp(min=0))
        own_state = stores.states.slots(batch.tables, batch.positions.unsqueeze(1)).flat()
        last = (batch.positions + 1) // _RATIO - 1
        ragged = RaggedPages.of(last.clamp(min=0) // self._slots_per_page + 1)
        pages = batch.tables[ragged.owner, ragged.place]

        def step(number: int, normed: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
            stores.states.write(number, own_state, self._states(number, normed))
            self._compress(number, groups, stores.states.read(number, ring), tokens >= 0)
            asked = self._asked(number, normed, batch)
            keys = stores.index.read(stores.own[number], pages)
            scores = index_scores_by_page(asked.queries, asked.gates, keys, last, ragged)
            best = torch.topk(scores, min(self._top_k, scores.shape[-1]), sorted=False)
            allowed = best.values > -torch.inf
            places = torch.where(allowed, best.indices, 0)
            entries = stores.entries.read(
                number, Slots.of(batch.tables, places, self._slots_per_page)
            )
            return attend(queries, entries, allowed.unsqueeze(1))

        return step

    # -- both -----------------------------------------------------------------------------------

    def _states(self, number: int, normed: torch.Tensor) -> torch.Tensor:
        layer = self._layers[number]
        return self._stores.states.rounded(normed @ layer.state_in @ layer.state_out)

    def _asked(self, number: int, normed: torch.Tensor, span: Chunk | Batch) -> "_Asked":
        layer = self._layers[number]
        queries = (normed @ layer.index_query).view(len(normed), _INDEX_HEADS, _INDEX_DIM)
        return _Asked(span.rotation.turn(queries), normed @ layer.index_gate)

    def _compress(
        self, number: int, groups: Groups, members: torch.Tensor, present: torch.Tensor
    ) -> None:
        """Compute the entries of ``groups`` and their index keys; ``members`` is (G, 8, 2,048)."""
        if not len(groups):
            return
        stores = self._stores
        pooled = _pooled(members, present)
        content, roped = rms(pooled[:, :CONTENT]), groups.rotation.turn(pooled[:, CONTENT:])
        stores.entries.write(number, groups.slots, torch.cat((content, roped), -1))
        kept = stores.entries.read(number, groups.slots)[:, :CONTENT]
        keys = groups.rotation.turn(rms(kept @ self._layers[number].index_key))
        stores.index.write(stores.own[number], groups.slots, keys)


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """The indexer queries of R tokens: queries (R, heads, dim) and gates (R, heads)."""

    queries: torch.Tensor
    gates: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _ChunkStates:
    """The states from which the groups of a chunk are pooled: those in the ring, then its own.

    ``rows`` and ``present`` (G, 8) give each member's row in that sequence, and whether the token
    exists. ``late`` are the chunk's rows that stay in the ring.
    """

    store: StateStore
    before: Slots
    rows: torch.Tensor
    present: torch.Tensor
    late: torch.Tensor
    ring: Slots

    @classmethod
    def of(cls, chunk: Chunk, groups: Groups, store: StateStore) -> "_ChunkStates":
        first = chunk.start - _MEMBERS + 1
        before = torch.arange(first, chunk.start, device=chunk.tables.device).clamp(min=0)
        tokens = _members(groups)
        positions = chunk.positions
        overwritten = (positions + store.ring < chunk.end) & (
            (positions + store.ring) // store.page_size == positions // store.page_size
        )
        (late,) = torch.nonzero(~overwritten, as_tuple=True)
        return cls(
            store,
            before=store.slots(chunk.tables, before.unsqueeze(0)).flat(),
            rows=(tokens - first).clamp(min=0),
            present=tokens >= 0,
            late=late,
            ring=store.slots(chunk.tables, positions[late].unsqueeze(0)).flat(),
        )

    def keep(self, number: int, own: torch.Tensor) -> torch.Tensor:
        """Store the chunk's ``own`` states (T, 2,048) in the ring; return the groups' members."""
        states = torch.cat((self.store.read(number, self.before), own))
        self.store.write(number, self.ring, own[self.late])
        return states[self.rows]


def _members(groups: Groups) -> torch.Tensor:
    """Return the tokens (G, 8) that each group is pooled from.

    Negative before the sequence starts.
    """
    reach = torch.arange(-_RATIO, _RATIO, device=groups.number.device)
    return groups.number.unsqueeze(1) * _RATIO + reach


def _pooled(members: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """Pool states (G, 8, 2,048) to entries (G, 512), weighing each value by its own scores."""
    parts = members.unflatten(-1, (_PARTS, ENTRY))
    older, own = parts[:, :_RATIO], parts[:, _RATIO:]
    values = torch.cat((older[:, :, 0], own[:, :, 1]), 1)
    scores = torch.cat((older[:, :, 2], own[:, :, 3]), 1)
    weights = scores.masked_fill(~present.unsqueeze(-1), -torch.inf).softmax(1)
    return (weights * values).sum(1)
