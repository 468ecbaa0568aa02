"""Latent attention over tokens selected by an indexer: pools ``mla`` and ``dsa_index_k``.

The formulas follow DeepSeek-V3.2: its lightning indexer selects ``top_k`` tokens, and multi-head
latent attention reads only those.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import PoolGeometry
from hicache_dbg.pools.host import IndexKHostPool, LatentHostPool
from hicache_dbg.pools.kinds import IndexDtype, index_k, mla
from hicache_dbg.repro.indexer import RaggedPages, chosen, index_scores, index_scores_by_page
from hicache_dbg.repro.kvio import IndexStore, RowStore, Slots, index_store
from hicache_dbg.repro.model import BLOCK, LayerStep, Model
from hicache_dbg.repro.poolset import PoolSet
from hicache_dbg.repro.rotary import Rotation, rms
from hicache_dbg.repro.weights import Matrix, ModelSpec, seeded_weights

__all__ = ["MLA_INDEX_K", "SPEC", "MlaAttention", "MlaSpec", "mla_model"]

_PAGE_SIZE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSpec(ModelSpec):
    """The shape of the model.

    Per token and layer, ``kv_lora_rank + rope_dim`` values of latent KV and ``index_dim`` values of
    index-K are cached. ``top_k`` tokens are attended to.
    """

    heads: int = 2
    head_dim: int = 16
    kv_lora_rank: int = 512
    rope_dim: int = 64
    index_heads: int = 2
    index_dim: int = 128
    top_k: int = 48


SPEC = MlaSpec()
"""The model of a run."""


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """One layer's matrices, each of shape (in, out)."""

    query: torch.Tensor
    latent: torch.Tensor
    up_key: torch.Tensor
    up_value: torch.Tensor
    out: torch.Tensor
    index_query: torch.Tensor
    index_key: torch.Tensor
    index_gate: torch.Tensor


def _draw(spec: MlaSpec, matrix: Matrix) -> _Layer:
    heads = spec.heads * spec.head_dim
    return _Layer(
        query=matrix(spec.width, spec.heads * (spec.head_dim + spec.rope_dim)),
        latent=matrix(spec.width, spec.kv_lora_rank + spec.rope_dim),
        up_key=matrix(spec.kv_lora_rank, heads),
        up_value=matrix(spec.kv_lora_rank, heads),
        out=matrix(heads, spec.width, gain=2.0),
        index_query=matrix(spec.width, spec.index_heads * spec.index_dim),
        index_key=matrix(spec.width, spec.index_dim),
        index_gate=matrix(spec.width, spec.index_heads),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Queries:
    """The queries of R tokens, each (R, heads, dim), and the gates (R, heads)."""

    attention: torch.Tensor
    index: torch.Tensor
    gates: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """The slots of a chunk: its context, itself included, and its own part of that."""

    start: int
    pages: torch.Tensor
    context: Slots
    own: Slots
    rotation: Rotation


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """The slots of a batch's tokens, and the pages of their sequences."""

    positions: torch.Tensor
    tables: torch.Tensor
    own: Slots
    ragged: RaggedPages
    pages: torch.Tensor
    rotation: Rotation


class MlaAttention:
    """Caches latents and index keys, scores all keys, and attends to the best tokens."""

    def __init__(
        self, spec: MlaSpec, layers: tuple[_Layer, ...], latent: RowStore, index: IndexStore
    ) -> None:
        self._spec = spec
        self._layers = layers
        self.latent = latent
        self.index = index

    def chunk(self, start: int, count: int, table: torch.Tensor) -> LayerStep:
        """See :class:`~hicache_dbg.repro.model.Attention`."""
        page_size = self.latent.page_size
        context = torch.arange(start + count, device=table.device)
        pages = table[: -(-len(context) // page_size)]
        slots = Slots(pages[context // page_size], context % page_size)
        rotation = Rotation.of(context[start:], self._spec.rope_dim)
        return partial(self._chunk, _Chunk(start, pages, slots, slots.after(start), rotation))

    def batch(self, positions: torch.Tensor, tables: torch.Tensor) -> LayerStep:
        """See :class:`~hicache_dbg.repro.model.Attention`."""
        page_size = self.latent.page_size
        ragged = RaggedPages.of(positions // page_size + 1)
        batch = _Batch(
            positions,
            tables,
            own=Slots.of(tables, positions.unsqueeze(1), page_size).flat(),
            ragged=ragged,
            pages=tables[ragged.owner, ragged.place],
            rotation=Rotation.of(positions, self._spec.rope_dim),
        )
        return partial(self._batch, batch)

    def _chunk(self, chunk: _Chunk, number: int, normed: torch.Tensor) -> torch.Tensor:
        layer = self._layers[number]
        asked = self._cache(number, normed, chunk.rotation, chunk.own)
        keys = self.index.read(number, chunk.pages).flatten(0, 1)
        expanded = _Expanded.of(self._spec, layer, self.latent.read(number, chunk.context))
        return self._by_blocks(asked, keys, expanded, chunk.start) @ layer.out

    def _batch(self, batch: _Batch, number: int, normed: torch.Tensor) -> torch.Tensor:
        layer = self._layers[number]
        asked = self._cache(number, normed, batch.rotation, batch.own)
        keys = self.index.read(number, batch.pages)
        scores = index_scores_by_page(asked.index, asked.gates, keys, batch.positions, batch.ragged)
        best = torch.topk(scores, min(self._spec.top_k, scores.shape[-1]), sorted=False)
        valid = best.values > -torch.inf
        places = torch.where(valid, best.indices, 0)
        latents = self.latent.read(number, Slots.of(batch.tables, places, self.latent.page_size))
        return _attend_latents(self._spec, layer, asked.attention, latents, valid) @ layer.out

    def _by_blocks(
        self, asked: _Queries, keys: torch.Tensor, expanded: "_Expanded", start: int
    ) -> torch.Tensor:
        """Let each query of a chunk that begins at ``start`` attend to what precedes it.

        Works by blocks of queries: nothing is computed beyond a block's last position, and the
        working set stays in the CPU cache.
        """
        mixed = []
        for first in range(0, len(asked.gates), BLOCK):
            block = slice(first, first + BLOCK)
            gates = asked.gates[block]
            seen = start + first + len(gates)
            positions = torch.arange(start + first, seen, device=keys.device)
            scores = index_scores(asked.index[block], gates, keys[:seen], positions)
            mask = chosen(scores, self._spec.top_k)
            mixed.append(expanded.attend(asked.attention[block], mask))
        return torch.cat(mixed)

    def _cache(
        self, number: int, normed: torch.Tensor, rotation: Rotation, slots: Slots
    ) -> _Queries:
        """Cache the latent KV and index-K of R tokens, and return their queries."""
        spec, layer = self._spec, self._layers[number]
        latent = normed @ layer.latent
        content, roped = latent[:, : spec.kv_lora_rank], latent[:, spec.kv_lora_rank :]
        self.latent.write(number, slots, torch.cat((rms(content), rotation.turn(roped)), -1))
        index_keys = rms(normed @ layer.index_key)
        self.index.write(number, slots, rotation.turn(index_keys))

        scale = spec.sharpness / (spec.head_dim + spec.rope_dim) ** 0.5
        queries = (normed @ layer.query).view(len(normed), spec.heads, -1) * scale
        index_queries = (normed @ layer.index_query).view(len(normed), spec.index_heads, -1)
        return _Queries(
            attention=rotation.turn(queries),
            index=rotation.turn(index_queries),
            gates=normed @ layer.index_gate,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Expanded:
    """The latents of one sequence expanded to keys and values, for many queries.

    ``keys`` is (heads, head_dim + rope_dim, C), ``values`` is (heads, C, head_dim).
    """

    keys: torch.Tensor
    values: torch.Tensor

    @classmethod
    def of(cls, spec: MlaSpec, layer: _Layer, latents: torch.Tensor) -> "_Expanded":
        """Expand ``latents`` (C, kv_lora_rank + rope_dim)."""
        content, roped = latents[:, : spec.kv_lora_rank], latents[:, spec.kv_lora_rank :]
        shape = (len(latents), spec.heads, spec.head_dim)
        keys = (content @ layer.up_key).view(shape).permute(1, 2, 0)
        values = (content @ layer.up_value).view(shape).transpose(0, 1)
        shared = roped.T.expand(spec.heads, -1, -1)
        return cls(torch.cat((keys, shared), 1), values.contiguous())

    def attend(self, queries: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Attend to the tokens in ``mask`` (T, C), which may cover fewer than were expanded.

        Dense work for a sparse result, because most tokens are chosen by some query.

        Args:
            queries: (T, heads, head_dim + rope_dim).
            mask: (T, C), which tokens each query attends to.

        Returns:
            (T, heads * head_dim).
        """
        seen = mask.shape[-1]
        logits = queries.transpose(0, 1) @ self.keys[..., :seen]
        weights = logits.masked_fill_(~mask, -torch.inf).softmax(-1)
        return (weights @ self.values[:, :seen]).transpose(0, 1).flatten(1)


def _attend_latents(
    spec: MlaSpec,
    layer: _Layer,
    queries: torch.Tensor,
    latents: torch.Tensor,
    valid: torch.Tensor,
) -> torch.Tensor:
    """Attend to tokens that were already gathered, one query per sequence (decoding).

    The query is projected into the latent space instead of expanding the latents (the absorbed
    form).

    Args:
        spec: of the model.
        layer: whose weights to use.
        queries: (N, heads, head_dim + rope_dim).
        latents: (N, K, kv_lora_rank + rope_dim).
        valid: (N, K), False for padding where a context has fewer than K tokens.

    Returns:
        (N, heads * head_dim).
    """
    shape = (spec.kv_lora_rank, spec.heads, spec.head_dim)
    to_latent = layer.up_key.view(shape).permute(1, 2, 0)  # (heads, head_dim, rank)
    from_latent = layer.up_value.view(shape).transpose(0, 1)  # (heads, rank, head_dim)
    absorbed = (queries[..., : spec.head_dim].transpose(0, 1) @ to_latent).transpose(0, 1)
    logits = torch.cat((absorbed, queries[..., spec.head_dim :]), -1) @ latents.transpose(1, 2)
    weights = logits.masked_fill_(~valid.unsqueeze(1), -torch.inf).softmax(-1)
    context = weights @ latents[..., : spec.kv_lora_rank]
    return (context.transpose(0, 1) @ from_latent).transpose(0, 1).flatten(1)


def _geometries(index_dtype: IndexDtype) -> tuple[PoolGeometry, ...]:
    return (
        mla(SPEC.layers, _PAGE_SIZE, kv_lora_rank=SPEC.kv_lora_rank, rope_dim=SPEC.rope_dim),
        index_k(SPEC.layers, _PAGE_SIZE, index_dtype, SPEC.index_dim),
    )


def mla_model(spec: MlaSpec, pools: Mapping[str, DevicePool]) -> Model:
    """Build the model of ``spec`` over its two pools."""
    latent = RowStore(pools["mla"], "latent")
    index = index_store(pools["dsa_index_k"])
    device = pools["mla"].device
    frame, layers = seeded_weights(spec, device, partial(_draw, spec))
    return Model(frame, MlaAttention(spec, layers, latent, index))


MLA_INDEX_K = PoolSet(
    page_size=_PAGE_SIZE,
    ctx=300,
    session_device_pages=32,
    trace_device_pages=128,
    host_class={"mla": LatentHostPool, "dsa_index_k": IndexKHostPool},
    geometries=_geometries,
    model=partial(mla_model, SPEC),
)
"""Any one session of the default size fits the device (12 pages), thirty do not (280); so does the
longest request of Mooncake's public traces at scale 16 (94 pages)."""
