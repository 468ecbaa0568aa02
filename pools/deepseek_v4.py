"""DeepSeek-V4's pools: six geometries under one anchor whose page is 256 tokens.

An entry of the attention pools is 448 fp8 elements, 64 rotary elements in bf16, seven ue8m0 scales
and one byte of padding: 576 + 8 B. A page holds all values, then all scales, and is rounded up to a
multiple of 576 B. Source: SGLang ``deepseek_v4_memory_pool.py``.

``layers`` is either the number of layers of a pool or the model's numbers of these layers;
``page_size`` counts tokens. A page size that does not divide into slots raises
:class:`GeometryError`.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from hicache_dbg.pools.geometry import Component, GeometryError, IndexUnit, PoolGeometry, RunSpec
from hicache_dbg.pools.kinds import IndexDtype, index_k_component

__all__ = [
    "deepseek_v4_c4",
    "deepseek_v4_c4_indexer",
    "deepseek_v4_c4_indexer_state",
    "deepseek_v4_c4_state",
    "deepseek_v4_c128",
    "deepseek_v4_pools",
    "deepseek_v4_swa",
    "draft_of",
]

PAGE_TOKENS = 256

_VALUE_BYTES = 448 + 64 * torch.bfloat16.itemsize
_SCALE_BYTES = 7 + 1
_INDEX_HEAD_DIM = 128
_HEAD_DIM = 512
#: Parts of a compressor state, each one head wide: key and score, both twice for the overlap.
_STATE_PARTS = 4


def deepseek_v4_swa(layers: int | Sequence[int], page_size: int = PAGE_TOKENS) -> PoolGeometry:
    """Return the pool of sliding-window entries, one per token: 149,760 B per page of 256."""
    return _attention("deepseek_v4_swa", layers, page_size, ratio=1)


def deepseek_v4_c4(layers: int | Sequence[int], page_size: int = PAGE_TOKENS) -> PoolGeometry:
    """Return the pool of entries that compress 4 tokens: 64 per page of 256 tokens, 37,440 B."""
    return _attention("deepseek_v4_c4", layers, page_size, ratio=4)


def deepseek_v4_c128(layers: int | Sequence[int], page_size: int = PAGE_TOKENS) -> PoolGeometry:
    """Return the pool of entries that compress 128 tokens: two per page of 256 tokens, 1,728 B."""
    return _attention("deepseek_v4_c128", layers, page_size, ratio=128)


def deepseek_v4_c4_indexer(
    layers: int | Sequence[int], page_size: int = PAGE_TOKENS, dtype: IndexDtype = "fp8"
) -> PoolGeometry:
    """Return the pool of index keys of the c4 entries: 64 per page of 256 tokens.

    A page takes 8,448 B in fp8 and 16,384 B in bf16.
    """
    component = index_k_component("index_k", dtype, _INDEX_HEAD_DIM)
    return _geometry("deepseek_v4_c4_indexer", layers, page_size, 4, component)


def deepseek_v4_c4_state(
    layers: int | Sequence[int],
    page_size: int = PAGE_TOKENS,
    ring: int = 8,
    dtype: torch.dtype = torch.float32,
) -> PoolGeometry:
    """Return the pool of c4 compressor states, a ring per page: 8 x 8,192 B in fp32 = 65,536 B.

    Token ``t`` of a page writes slot ``t % ring``. A slot therefore belongs to no single token and
    is never copied alone.
    """
    component = _state(dtype, _HEAD_DIM)
    return _ring("deepseek_v4_c4_state", layers, page_size, ring, component)


def deepseek_v4_c4_indexer_state(
    layers: int | Sequence[int],
    page_size: int = PAGE_TOKENS,
    ring: int = 8,
    dtype: torch.dtype = torch.float32,
) -> PoolGeometry:
    """Return the pool of compressor states of the c4 indexer: 8 x 2,048 B in fp32 = 16,384 B.

    A ring like :func:`deepseek_v4_c4_state`, with the indexer's head width of 128 instead of 512.
    """
    component = _state(dtype, _INDEX_HEAD_DIM)
    return _ring("deepseek_v4_c4_indexer_state", layers, page_size, ring, component)


def deepseek_v4_pools(
    *,
    swa_layers: Sequence[int],
    c4_layers: Sequence[int],
    c128_layers: Sequence[int],
    page_size: int = PAGE_TOKENS,
    index_dtype: IndexDtype = "fp8",
    indexer_state: bool = False,
) -> tuple[PoolGeometry, ...]:
    """Return all pools of a model under one anchor, given the model's layer numbers of each kind.

    A kind without layers gets no pool. The sliding window comes first: it is the anchor.
    ``indexer_state`` adds the indexer's own ring, for models that compress index keys
    incrementally.

    Raises:
        GeometryError: ``swa_layers`` is empty, or ``page_size`` does not divide into slots.
    """
    if not swa_layers:
        raise GeometryError(
            "deepseek_v4: swa_layers is empty, but the sliding window is the anchor"
        )
    pools = [deepseek_v4_swa(swa_layers, page_size)]
    if c4_layers:
        pools += [
            deepseek_v4_c4(c4_layers, page_size),
            deepseek_v4_c4_indexer(c4_layers, page_size, index_dtype),
            deepseek_v4_c4_state(c4_layers, page_size),
        ]
        if indexer_state:
            pools.append(deepseek_v4_c4_indexer_state(c4_layers, page_size))
    if c128_layers:
        pools.append(deepseek_v4_c128(c128_layers, page_size))
    return tuple(pools)


def draft_of(geometry: PoolGeometry, layer_ids: Sequence[int]) -> PoolGeometry:
    """Return the geometry of a draft model's pool of the same kind, sharing the anchor's pages.

    Its ``layer_ids`` follow the target model's, so that one set of layer gates serves both.
    """
    return replace(
        geometry,
        name=f"draft_{geometry.name}",
        layers=len(layer_ids),
        layer_ids=tuple(layer_ids),
    )


def _attention(
    name: str, layers: int | Sequence[int], page_size: int, *, ratio: int
) -> PoolGeometry:
    runs = (RunSpec("value", _VALUE_BYTES), RunSpec("scale", _SCALE_BYTES))
    component = Component("kv", torch.uint8, runs, page_align=_VALUE_BYTES)
    return _geometry(name, layers, page_size, ratio, component)


def _state(dtype: torch.dtype, head_dim: int) -> Component:
    run = RunSpec("state", _STATE_PARTS * head_dim * dtype.itemsize)
    return Component("state", dtype, (run,))


def _ring(
    name: str, layers: int | Sequence[int], page_size: int, ring: int, component: Component
) -> PoolGeometry:
    ratio = _divide(name, page_size, ring)
    return replace(_geometry(name, layers, page_size, ratio, component), single_slots=False)


def _geometry(
    name: str, layers: int | Sequence[int], page_size: int, ratio: int, component: Component
) -> PoolGeometry:
    layer_ids = tuple(range(layers)) if isinstance(layers, int) else tuple(layers)
    return PoolGeometry(
        name=name,
        layers=len(layer_ids),
        slots_per_page=_divide(name, page_size, ratio),
        tokens_per_slot=ratio,
        index_unit=IndexUnit.TOKEN,
        page_indexed=True,
        components=(component,),
        layer_ids=layer_ids,
    )


def _divide(name: str, page_size: int, ratio: int) -> int:
    if ratio < 1 or page_size % ratio:
        raise GeometryError(
            f"{name}: a page of {page_size} tokens does not split into slots of {ratio} tokens"
        )
    return page_size // ratio
