"""The model: a sliding window in every layer, with fine or coarse compression beside it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hicache_dbg.pools.deepseek_v4 import PAGE_TOKENS, deepseek_v4_pools
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import PoolGeometry
from hicache_dbg.pools.host import PagedHostPool
from hicache_dbg.pools.kinds import IndexDtype
from hicache_dbg.repro.kvio import index_store
from hicache_dbg.repro.model import LayerStep, Model
from hicache_dbg.repro.poolset import PoolSet
from hicache_dbg.repro.v4.c4 import Fine, FineLayer, FineStores
from hicache_dbg.repro.v4.c128 import Coarse, CoarseLayer
from hicache_dbg.repro.v4.packed import CONTENT, ENTRY, EntryStore, StateStore
from hicache_dbg.repro.v4.span import Batch, BranchStep, Chunk
from hicache_dbg.repro.v4.window import Window
from hicache_dbg.repro.weights import Matrix, ModelSpec, seeded_weights

__all__ = ["DEEPSEEK_V4", "V4Attention", "V4Spec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class V4Spec(ModelSpec):
    """The shape of the model: ``ratios`` says how each layer compresses what the window leaves out.

    With a ratio of 4, an indexer selects ``top_k`` entries; with 128, all entries are read.
    """

    heads: int = 1
    sharpness: float = 6.0
    end_bias: float = 0.4
    tool_bias: float = 0.5
    seed: int = 2
    ratios: tuple[int, ...] = (4, 128, 4)
    window: int = 64
    top_k: int = 24

    def layers_of(self, ratio: int) -> tuple[int, ...]:
        """Return the layers with this ratio."""
        return tuple(layer for layer, own in enumerate(self.ratios) if own == ratio)


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """One layer's matrices, each of shape (in, out), and those of its compression."""

    query: torch.Tensor
    entry: torch.Tensor
    out: torch.Tensor
    fine: FineLayer | None
    coarse: CoarseLayer | None


class _Draw:
    """Draws one layer after the other."""

    def __init__(self, spec: V4Spec) -> None:
        self._spec = spec
        self._ratios = iter(spec.ratios)

    def __call__(self, matrix: Matrix) -> _Layer:
        spec, ratio = self._spec, next(self._ratios)
        return _Layer(
            query=matrix(spec.width, spec.heads * ENTRY),
            entry=matrix(spec.width, ENTRY),
            out=matrix(spec.heads * CONTENT, spec.width, gain=2.0),
            fine=FineLayer.draw(spec.width, matrix) if ratio == 4 else None,
            coarse=CoarseLayer.draw(matrix) if ratio == 128 else None,
        )


class V4Attention:
    """Adds the attention over the window and over the layer's compressed entries."""

    def __init__(
        self, spec: V4Spec, layers: tuple[_Layer, ...], pools: Mapping[str, DevicePool]
    ) -> None:
        self._spec = spec
        self._layers = layers
        window = EntryStore(pools["deepseek_v4_swa"])
        self._window = Window(window, tuple(layer.entry for layer in layers), spec.window)
        fine = {n: layer.fine for n, layer in enumerate(layers) if layer.fine is not None}
        coarse = {n: layer.coarse for n, layer in enumerate(layers) if layer.coarse is not None}
        index = pools["deepseek_v4_c4_indexer"]
        stores = FineStores(
            entries=EntryStore(pools["deepseek_v4_c4"]),
            states=StateStore(pools["deepseek_v4_c4_state"]),
            index=index_store(index),
            own={layer: own for own, layer in enumerate(index.geometry.layer_ids)},
        )
        self._fine = Fine(fine, stores, spec.top_k)
        self._coarse = Coarse(coarse, window, EntryStore(pools["deepseek_v4_c128"]))

    def chunk(self, start: int, count: int, table: torch.Tensor) -> LayerStep:
        """See :class:`~hicache_dbg.repro.model.Attention`."""
        chunk = Chunk.of(start, count, table)
        window, compressed = (
            self._window.chunk(chunk),
            self._compressed(self._fine.chunk(chunk), self._coarse.chunk(chunk)),
        )

        def step(number: int, normed: torch.Tensor) -> torch.Tensor:
            queries = self._queries(number, normed, chunk).transpose(0, 1)  # (heads, T, 512)
            found = window(number, normed, queries) + compressed[number](number, normed, queries)
            return found.transpose(0, 1).flatten(1) @ self._layers[number].out

        return step

    def batch(self, positions: torch.Tensor, tables: torch.Tensor) -> LayerStep:
        """See :class:`~hicache_dbg.repro.model.Attention`."""
        batch = Batch.of(positions, tables)
        window, compressed = (
            self._window.batch(batch),
            self._compressed(self._fine.batch(batch), self._coarse.batch(batch)),
        )

        def step(number: int, normed: torch.Tensor) -> torch.Tensor:
            queries = self._queries(number, normed, batch)  # (N, heads, 512)
            found = window(number, normed, queries) + compressed[number](number, normed, queries)
            return found.flatten(1) @ self._layers[number].out

        return step

    def _compressed(self, fine: BranchStep, coarse: BranchStep) -> tuple[BranchStep, ...]:
        """Return the compression step of each layer."""
        return tuple(fine if ratio == 4 else coarse for ratio in self._spec.ratios)

    def _queries(self, number: int, normed: torch.Tensor, span: Chunk | Batch) -> torch.Tensor:
        """Compute the queries (R, heads, 512)."""
        spec = self._spec
        queries = (normed @ self._layers[number].query).view(len(normed), spec.heads, ENTRY)
        return span.rotation.turn(queries * (spec.sharpness / ENTRY**0.5))


def _geometries(index_dtype: IndexDtype) -> tuple[PoolGeometry, ...]:
    return deepseek_v4_pools(
        swa_layers=range(_SPEC.layers),
        c4_layers=_SPEC.layers_of(4),
        c128_layers=_SPEC.layers_of(128),
        index_dtype=index_dtype,
    )


def _model(pools: Mapping[str, DevicePool]) -> Model:
    device = pools["deepseek_v4_swa"].device
    frame, layers = seeded_weights(_SPEC, device, _Draw(_SPEC))
    return Model(frame, V4Attention(_SPEC, layers, pools))


_SPEC = V4Spec()

DEEPSEEK_V4 = PoolSet(
    page_size=PAGE_TOKENS,
    ctx=780,
    session_device_pages=20,
    trace_device_pages=32,
    host_class={geometry.name: PagedHostPool for geometry in _geometries("bf16")},
    geometries=_geometries,
    model=_model,
)
"""Any one session of the default size fits the device (5 pages), thirty do not (90)."""
