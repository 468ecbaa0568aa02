"""A small sparse-attention transformer that reads and writes its KV through page tables."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hicache_dbg.repro.attention import (
    Expanded,
    RaggedPages,
    Rotation,
    attend_chosen,
    index_scores,
    index_scores_by_page,
)
from hicache_dbg.repro.kvio import KvStore, Slots
from hicache_dbg.repro.tokens import Special
from hicache_dbg.repro.weights import LayerWeights, ModelSpec, seeded_weights

__all__ = ["BLOCK", "CHUNK", "Model"]

CHUNK = 512
"""How many prompt tokens go through the layers at once, at most."""

BLOCK = 128
"""How many queries of a chunk look at the context at once."""

#: Called with a layer's number before that layer reads what was cached.
LayerGate = Callable[[int], None]


@dataclass(frozen=True, slots=True, eq=False)
class _Queries:
    """What R tokens ask of their context, each (R, heads, dim), and the gates (R, heads)."""

    attention: torch.Tensor
    index: torch.Tensor
    gates: torch.Tensor


def _open(_layer: int) -> None:
    """Wait for nothing: everything that will be read is already on the device."""


def _norm(values: torch.Tensor) -> torch.Tensor:
    """Scale the last axis to a root mean square of 1."""
    return values * torch.rsqrt(values.square().mean(-1, keepdim=True) + 1e-12)


class Model:
    """The model of ``spec``; holds weights only, so one serves any number of pools."""

    def __init__(self, spec: ModelSpec | None = None) -> None:
        self.spec = spec or ModelSpec()
        self._weights = seeded_weights(self.spec)

    def prefill(
        self,
        store: KvStore,
        tokens: torch.Tensor,
        start: int,
        table: torch.Tensor,
        gate: LayerGate = _open,
    ) -> int:
        """Compute and cache ``tokens`` at positions ``start ..`` and return the next token.

        Args:
            store: the pools.
            tokens: (T,) int64, at least one; longer prompts are cut to chunks of ``CHUNK``.
            start: how many tokens of the sequence are cached already.
            table: (P,) int64 page ids of the sequence, enough for ``start + T`` tokens.
            gate: called before each layer first reads the pools.
        """
        last = tokens[:0]
        for first in range(0, len(tokens), CHUNK):
            last = self._chunk(store, tokens[first : first + CHUNK], start + first, table, gate)
            gate = _open  # a layer that was once let through stays readable
        return self._next_tokens(last, tokens[-1:])[0]

    def decode(
        self,
        store: KvStore,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        tables: torch.Tensor,
    ) -> list[int]:
        """Compute and cache one token of each of N sequences and return their next tokens.

        Args:
            store: the pools.
            tokens: (N,) int64, the last token of each sequence.
            positions: (N,) int64, where those tokens stand.
            tables: (N, P) int64 page ids, rows padded with any valid page.
        """
        slots = Slots.of(tables, positions.unsqueeze(1), store.page_size).flat()
        ragged = RaggedPages.of(positions // store.page_size + 1)
        pages = tables[ragged.owner, ragged.place]
        rotation = Rotation.of(positions, self.spec.rope_dim)
        hidden = self._weights.embedding[tokens]
        for number, layer in enumerate(self._weights.layers):
            asked = self._cache(store, number, hidden, rotation, slots)
            keys = store.index.read(number, pages)
            scores = index_scores_by_page(asked.index, asked.gates, keys, positions, ragged)
            best = torch.topk(scores, min(self.spec.top_k, scores.shape[-1]), sorted=False)
            valid = best.values > -torch.inf
            chosen = torch.where(valid, best.indices, 0)
            latents = store.latent.read(number, Slots.of(tables, chosen, store.page_size))
            hidden = self._rest(
                layer, hidden, attend_chosen(self.spec, layer, asked.attention, latents, valid)
            )
        return self._next_tokens(hidden, tokens)

    def _chunk(
        self, store: KvStore, tokens: torch.Tensor, start: int, table: torch.Tensor, gate: LayerGate
    ) -> torch.Tensor:
        """Run one chunk of one sequence through all layers; return its last hidden state (1, width)."""
        length = start + len(tokens)
        used = table[: -(-length // store.page_size)]
        context = torch.arange(length)
        everything = Slots(used[context // store.page_size], context % store.page_size)
        slots, positions = everything.after(start), context[start:]
        rotation = Rotation.of(positions, self.spec.rope_dim)
        hidden = self._weights.embedding[tokens]
        for number, layer in enumerate(self._weights.layers):
            gate(number)
            asked = self._cache(store, number, hidden, rotation, slots)
            keys = store.index.read(number, used).flatten(0, 1)
            expanded = Expanded.of(self.spec, layer, store.latent.read(number, everything))
            hidden = self._rest(layer, hidden, self._attend(asked, keys, expanded, start))
        return hidden[-1:]

    def _attend(
        self, asked: _Queries, keys: torch.Tensor, expanded: Expanded, start: int
    ) -> torch.Tensor:
        """Let each query of a chunk that begins at ``start`` look at what comes before it.

        By blocks of queries: what lies after a block is no work, and what is worked on stays in
        the processor's cache.
        """
        mixed = []
        for first in range(0, len(asked.gates), BLOCK):
            block = slice(first, first + BLOCK)
            positions = start + torch.arange(len(asked.gates))[block]
            seen = int(positions[-1]) + 1
            scores = index_scores(asked.index[block], asked.gates[block], keys[:seen], positions)
            mixed.append(expanded.attend(asked.attention[block], scores, self.spec.top_k))
        return torch.cat(mixed)

    def _cache(
        self,
        store: KvStore,
        number: int,
        hidden: torch.Tensor,
        rotation: Rotation,
        slots: Slots,
    ) -> _Queries:
        """Cache the latent KV and index-K of R tokens and return what they ask of the context.

        ``hidden`` is (R, width), ``slots`` (R,).
        """
        spec, layer = self.spec, self._weights.layers[number]
        normed = _norm(hidden)
        latent = normed @ layer.latent
        content, roped = latent[:, : spec.kv_lora_rank], latent[:, spec.kv_lora_rank :]
        store.latent.write(number, slots, torch.cat((_norm(content), rotation.turn(roped)), -1))
        index_keys = _norm(normed @ layer.index_key)
        store.index.write(number, slots, rotation.turn(index_keys))

        scale = spec.sharpness / (spec.head_dim + spec.rope_dim) ** 0.5
        queries = (normed @ layer.query).view(len(hidden), spec.heads, -1) * scale
        index_queries = (normed @ layer.index_query).view(len(hidden), spec.index_heads, -1)
        return _Queries(
            attention=rotation.turn(queries),
            index=rotation.turn(index_queries),
            gates=normed @ layer.index_gate,
        )

    def _rest(self, layer: LayerWeights, hidden: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Add what attention found, then the feed-forward part."""
        hidden = hidden + mixed @ layer.out
        return hidden + torch.nn.functional.silu(_norm(hidden) @ layer.ffn_in) @ layer.ffn_out

    def _next_tokens(self, hidden: torch.Tensor, tokens: torch.Tensor) -> list[int]:
        """Pick the likeliest token after each of ``tokens`` (N,), given hidden states (N, width)."""
        logits = _norm(hidden) @ self._weights.output + self._weights.bias
        logits[:, Special.END] -= self.spec.empty_penalty * (tokens == Special.ASSISTANT)
        return logits.argmax(-1).tolist()
