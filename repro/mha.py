"""Dense multi-head attention, keys and values of different widths: pool ``mha``."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import PoolGeometry
from hicache_dbg.pools.host import MHAHostPool
from hicache_dbg.pools.kinds import IndexDtype, mha
from hicache_dbg.repro.kvio import RowStore, Slots
from hicache_dbg.repro.model import BLOCK, LayerStep, Model
from hicache_dbg.repro.poolset import PoolSet
from hicache_dbg.repro.rotary import Rotation
from hicache_dbg.repro.weights import Matrix, ModelSpec, seeded_weights

__all__ = ["MHA", "MhaAttention", "MhaSpec", "mha_geometry", "mha_model"]

_PAGE_SIZE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MhaSpec(ModelSpec):
    """The shape of the model: a key of ``head_dim`` and a value of ``v_head_dim`` per head."""

    end_bias: float = -0.4
    heads: int = 8
    head_dim: int = 16
    v_head_dim: int = 8


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """One layer's matrices, each of shape (in, out)."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    out: torch.Tensor


def _draw(spec: MhaSpec, matrix: Matrix) -> _Layer:
    return _Layer(
        query=matrix(spec.width, spec.heads * spec.head_dim),
        key=matrix(spec.width, spec.heads * spec.head_dim),
        value=matrix(spec.width, spec.heads * spec.v_head_dim),
        out=matrix(spec.heads * spec.v_head_dim, spec.width, gain=2.0),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """A chunk's context, itself included, and the chunk's own slots in it."""

    context: Slots
    own: Slots
    rotation: Rotation


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """The contexts of a batch, (N, longest).

    ``later`` (N, longest) masks what a query may not see.
    """

    context: Slots
    own: Slots
    later: torch.Tensor
    rotation: Rotation


class MhaAttention:
    """Caches keys and values, and attends to all of them."""

    def __init__(
        self, spec: MhaSpec, layers: tuple[_Layer, ...], keys: RowStore, values: RowStore
    ) -> None:
        self._spec = spec
        self._layers = layers
        self.keys = keys
        self.values = values

    def chunk(self, start: int, count: int, table: torch.Tensor) -> LayerStep:
        """See :class:`~hicache_dbg.repro.model.Attention`."""
        positions = torch.arange(start + count, device=table.device)
        context = Slots.of(table.unsqueeze(0), positions.unsqueeze(0), self.keys.page_size).flat()
        rotation = Rotation.of(positions[start:], self._spec.head_dim)
        return partial(self._chunk, _Chunk(context, context.after(start), rotation))

    def batch(self, positions: torch.Tensor, tables: torch.Tensor) -> LayerStep:
        """See :class:`~hicache_dbg.repro.model.Attention`."""
        page_size = self.keys.page_size
        longest = torch.arange(int(positions.max()) + 1, device=tables.device)
        batch = _Batch(
            context=Slots.of(tables, longest.expand(len(tables), -1), page_size),
            own=Slots.of(tables, positions.unsqueeze(1), page_size).flat(),
            later=longest > positions.unsqueeze(1),
            rotation=Rotation.of(positions, self._spec.head_dim),
        )
        return partial(self._batch, batch)

    def _chunk(self, chunk: _Chunk, number: int, normed: torch.Tensor) -> torch.Tensor:
        queries = self._cache(number, normed, chunk.rotation, chunk.own).transpose(0, 1)
        keys = self.keys.read_by_head(number, chunk.context).transpose(1, 2)  # (heads, dim, C)
        values = self.values.read_by_head(number, chunk.context)  # (heads, C, dim)
        length = keys.shape[-1]
        positions = torch.arange(length, device=keys.device)
        start, mixed = length - len(normed), []
        for first in range(start, length, BLOCK):
            asking = positions[first : first + BLOCK]
            seen = first + len(asking)
            later = positions[:seen] > asking.unsqueeze(1)
            logits = queries[:, first - start : seen - start] @ keys[..., :seen]
            weights = logits.masked_fill_(later, -torch.inf).softmax(-1)
            mixed.append((weights @ values[:, :seen]).transpose(0, 1).flatten(1))
        return torch.cat(mixed) @ self._layers[number].out

    def _batch(self, batch: _Batch, number: int, normed: torch.Tensor) -> torch.Tensor:
        queries = self._cache(number, normed, batch.rotation, batch.own).unsqueeze(2)
        keys = self.keys.read_by_head(number, batch.context).transpose(2, 3)  # (N, heads, dim, C)
        values = self.values.read_by_head(number, batch.context)  # (N, heads, C, dim)
        logits = (queries @ keys).masked_fill_(batch.later[:, None, None], -torch.inf)
        mixed = logits.softmax(-1) @ values
        return mixed.flatten(1) @ self._layers[number].out

    def _cache(
        self, number: int, normed: torch.Tensor, rotation: Rotation, slots: Slots
    ) -> torch.Tensor:
        """Cache keys and values of R tokens; return their queries (R, heads, head_dim)."""
        spec, layer = self._spec, self._layers[number]
        shape = (len(normed), spec.heads, -1)
        self.keys.write(number, slots, rotation.turn((normed @ layer.key).view(shape)))
        self.values.write(number, slots, (normed @ layer.value).view(shape))
        scale = spec.sharpness / spec.head_dim**0.5
        return rotation.turn((normed @ layer.query).view(shape) * scale)


def mha_geometry(spec: MhaSpec) -> PoolGeometry:
    """Return the pool geometry for a model of ``spec``."""
    return mha(spec.layers, _PAGE_SIZE, spec.heads, spec.head_dim, v_head_dim=spec.v_head_dim)


def mha_model(spec: MhaSpec, pools: Mapping[str, DevicePool]) -> Model:
    """Build the model of ``spec`` over its pool."""
    pool = pools["mha"]
    frame, layers = seeded_weights(spec, pool.device, partial(_draw, spec))
    attention = MhaAttention(spec, layers, RowStore(pool, "k"), RowStore(pool, "v"))
    return Model(frame, attention)


def _geometries(_index_dtype: IndexDtype) -> tuple[PoolGeometry, ...]:
    return (mha_geometry(_SPEC),)


_SPEC = MhaSpec()

MHA = PoolSet(
    page_size=_PAGE_SIZE,
    ctx=300,
    session_device_pages=32,
    trace_device_pages=128,
    host_class={"mha": MHAHostPool},
    geometries=_geometries,
    model=partial(mha_model, _SPEC),
)
"""Sessions have the sizes of the set ``mla_index_k``."""
