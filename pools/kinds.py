"""Geometries of the pools that models keep: latent rows, keys and values by head, index keys.

Sources: SGLang's MLA, MHA and DSA pools (``kv_cache_dim``, ``index_key_cache``). Every byte count
follows from the given dtype and shape; none is a class default. ``page_size`` counts tokens,
``layers`` the pool's layers; values below 1 raise :class:`GeometryError`.
"""

import torch

from hicache_dbg.pools.choices import IndexDtype
from hicache_dbg.pools.geometry import Component, GeometryError, IndexUnit, PoolGeometry, RunSpec

__all__ = ["SCALE_BLOCK", "IndexDtype", "index_k", "index_k_component", "mha", "mla"]

#: Number of fp8 elements that share one fp32 scale.
SCALE_BLOCK = 128

_FLOAT32 = torch.float32.itemsize
_PACKED_FP8 = (torch.uint8, torch.float8_e4m3fn)


def mla(
    layers: int,
    page_size: int,
    dtype: torch.dtype = torch.bfloat16,
    kv_lora_rank: int = 512,
    rope_dim: int = 64,
) -> PoolGeometry:
    """Return the pool of latent rows of multi-head latent attention, one row per token.

    A row takes 1,152 B in bf16 and 656 B in fp8 at the default widths. fp8 rows (``torch.uint8`` or
    ``float8_e4m3fn``) are packed: the latent in fp8, one fp32 scale per 128 of its elements, then
    the rotary part in bf16, interleaved row by row.

    Raises:
        GeometryError: the dtype is fp8 and ``kv_lora_rank`` is not a multiple of 128.
    """
    if dtype in _PACKED_FP8:
        rope = rope_dim * torch.bfloat16.itemsize
        row = kv_lora_rank + _scale_bytes(kv_lora_rank) + rope
        component = Component("latent", torch.uint8, (RunSpec("row", row),))
    else:
        row = (kv_lora_rank + rope_dim) * dtype.itemsize
        component = Component("latent", dtype, (RunSpec("row", row),))
    return _per_token("mla", layers, page_size, (component,), page_indexed=False)


def index_k(
    layers: int, page_size: int, dtype: IndexDtype = "bf16", head_dim: int = 128
) -> PoolGeometry:
    """Return the pool of a sparse-attention indexer's keys, one per token.

    A key takes 256 B in bf16 and 128 + 4 B in fp8 at the default width.

    Raises:
        GeometryError: the dtype is another one, or it is fp8 and ``head_dim`` is not a multiple of
            128.
    """
    component = index_k_component("index_k", dtype, head_dim)
    return _per_token("dsa_index_k", layers, page_size, (component,), page_indexed=True)


def index_k_component(name: str, dtype: IndexDtype, head_dim: int) -> Component:
    """Return index keys as a component; in fp8 a page holds all keys, then all fp32 scales.

    Raises:
        GeometryError: as :func:`index_k`.
    """
    if dtype == "bf16":
        key = head_dim * torch.bfloat16.itemsize
        return Component(name, torch.bfloat16, (RunSpec("key", key),))
    if dtype == "fp8":
        runs = (RunSpec("key", head_dim), RunSpec("scale", _scale_bytes(head_dim)))
        return Component(name, torch.uint8, runs)
    raise GeometryError(f"index-K dtype is {dtype!r}, expected 'bf16' or 'fp8'")


def mha(
    layers: int,
    page_size: int,
    heads: int,
    head_dim: int,
    *,
    v_head_dim: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> PoolGeometry:
    """Return the pool of keys and values of multi-head attention, one row of heads each per token.

    A row takes ``heads * width * dtype.itemsize`` bytes, where the width is ``head_dim`` for keys
    and ``v_head_dim`` (default: ``head_dim``) for values.
    """
    components = tuple(
        Component(
            name,
            dtype,
            (RunSpec(name, heads * width * dtype.itemsize),),
            heads=heads,
            head_axis=True,
        )
        for name, width in (("k", head_dim), ("v", head_dim if v_head_dim is None else v_head_dim))
    )
    return _per_token("mha", layers, page_size, components, page_indexed=False)


def _per_token(
    name: str, layers: int, page_size: int, components: tuple[Component, ...], *, page_indexed: bool
) -> PoolGeometry:
    return PoolGeometry(
        name=name,
        layers=layers,
        slots_per_page=page_size,
        tokens_per_slot=1,
        index_unit=IndexUnit.TOKEN,
        page_indexed=page_indexed,
        components=components,
    )


def _scale_bytes(elements: int) -> int:
    if elements % SCALE_BLOCK:
        raise GeometryError(
            f"{elements} fp8 elements do not split into blocks of {SCALE_BLOCK} with one scale each"
        )
    return elements // SCALE_BLOCK * _FLOAT32
