"""DeepSeek-V4's pools: five geometries under one anchor whose page is 256 tokens.

An entry of the attention pools is 448 fp8 elements, 64 rotary elements in bf16, seven ue8m0
scales and a byte of padding: 576 + 8 B. A page holds all values, then all scales, and is rounded
up to a multiple of 576 B. Source: SGLang ``deepseek_v4_memory_pool.py``.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from hicache_dbg.pools.geometry import Component, GeometryError, IndexUnit, PoolGeometry, RunSpec
from hicache_dbg.pools.kinds import IndexDtype, index_k_component

__all__ = [
    "deepseek_v4_c4",
    "deepseek_v4_c4_indexer",
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
#: Elements of a c4 compress state: key and value parts, twice for the overlap, 512 each.
_C4_STATE_ELEMENTS = 4 * 512


def deepseek_v4_swa(layers: int | Sequence[int], page_size: int = PAGE_TOKENS) -> PoolGeometry:
    """Sliding-window entries, one a token: 149,760 B a page of 256."""
    return _attention("deepseek_v4_swa", layers, page_size, ratio=1)


def deepseek_v4_c4(layers: int | Sequence[int], page_size: int = PAGE_TOKENS) -> PoolGeometry:
    """Entries that compress four tokens: 64 a page of 256 tokens, 37,440 B."""
    return _attention("deepseek_v4_c4", layers, page_size, ratio=4)


def deepseek_v4_c128(layers: int | Sequence[int], page_size: int = PAGE_TOKENS) -> PoolGeometry:
    """Entries that compress 128 tokens: two a page of 256 tokens, 1,728 B."""
    return _attention("deepseek_v4_c128", layers, page_size, ratio=128)


def deepseek_v4_c4_indexer(
    layers: int | Sequence[int], page_size: int = PAGE_TOKENS, dtype: IndexDtype = "fp8"
) -> PoolGeometry:
    """Index keys of the c4 entries: 64 a page of 256 tokens, 8,448 B in fp8, 16,384 B in bf16."""
    component = index_k_component("index_k", dtype, _INDEX_HEAD_DIM)
    return _geometry("deepseek_v4_c4_indexer", layers, page_size, 4, component)


def deepseek_v4_c4_state(
    layers: int | Sequence[int],
    page_size: int = PAGE_TOKENS,
    ring: int = 8,
    dtype: torch.dtype = torch.float32,
) -> PoolGeometry:
    """Compress states of a page's latest c4 entries, a ring: 8 x 8,192 B in fp32 = 65,536 B.

    Token ``t`` of a page writes slot ``t % ring``, so a slot belongs to no one token and is
    never copied alone.
    """
    run = RunSpec("state", _C4_STATE_ELEMENTS * dtype.itemsize)
    component = Component("state", dtype, (run,))
    name = "deepseek_v4_c4_state"
    geometry = _geometry(name, layers, page_size, _divide(name, page_size, ring), component)
    return replace(geometry, single_slots=False)


def deepseek_v4_pools(
    *,
    swa_layers: Sequence[int],
    c4_layers: Sequence[int],
    c128_layers: Sequence[int],
    page_size: int = PAGE_TOKENS,
    index_dtype: IndexDtype = "fp8",
) -> tuple[PoolGeometry, ...]:
    """All pools of a model under one anchor; each layer list holds the model's layer numbers.

    A kind without layers has no pool. The sliding window comes first: it is the anchor.
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
    if c128_layers:
        pools.append(deepseek_v4_c128(c128_layers, page_size))
    return tuple(pools)


def draft_of(geometry: PoolGeometry, layer_ids: Sequence[int]) -> PoolGeometry:
    """A draft model's pool of the same kind, which shares the anchor's pages.

    Its ``layer_ids`` come after the target model's, so that one set of gates serves both.
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
