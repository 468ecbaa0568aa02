"""CPU stand-ins for the CUDA copy functions that SGLang's host pools call, bound by name.

Each moves the bytes that the kernel of that name moves, by address: index times item size from the
given base. A wrong size or index therefore does the same damage as on a GPU.
"""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import torch

__all__ = ["install"]

Tensor = torch.Tensor


def _move(to: int, source: int, size: int) -> None:
    ctypes.memmove(to, source, size)


def _pairs(src_indices: Tensor, dst_indices: Tensor) -> Iterable[tuple[int, int]]:
    return zip(src_indices.tolist(), dst_indices.tolist(), strict=True)


def transfer_kv_per_layer_mla(
    *, src: Tensor, dst: Tensor, src_indices: Tensor, dst_indices: Tensor, item_size: int, **_: Any
) -> None:
    """Copy one layer; both ends are packed rows of ``item_size``."""
    for at, to in _pairs(src_indices, dst_indices):
        _move(dst.data_ptr() + to * item_size, src.data_ptr() + at * item_size, item_size)


def transfer_kv_all_layer_mla(
    *,
    src_layers: Tensor,
    dst_layers: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    num_layers: int,
    **_: Any,
) -> None:
    """Copy all layers, by tables of pointers."""
    tables = src_layers.tolist()[:num_layers], dst_layers.tolist()[:num_layers]
    for source, target in zip(*tables, strict=True):
        for at, to in _pairs(src_indices, dst_indices):
            _move(target + to * item_size, source + at * item_size, item_size)


def transfer_kv_per_layer_mla_pf_lf(
    *,
    src: Tensor,
    dst: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    item_size: int,
    src_layout_dim: int,
    **_: Any,
) -> None:
    """Copy one layer out of rows that hold all layers."""
    source = src.data_ptr() + layer_id * item_size
    for at, to in _pairs(src_indices, dst_indices):
        _move(dst.data_ptr() + to * item_size, source + at * src_layout_dim, item_size)


def transfer_kv_all_layer_mla_lf_pf(
    *,
    src_layers: Tensor,
    dst: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    dst_layout_dim: int,
    num_layers: int,
    **_: Any,
) -> None:
    """Copy all layers into rows that hold all layers."""
    for layer, source in enumerate(src_layers.tolist()[:num_layers]):
        target = dst.data_ptr() + layer * item_size
        for at, to in _pairs(src_indices, dst_indices):
            _move(target + to * dst_layout_dim, source + at * item_size, item_size)


def _for_k_and_v(single: Callable[..., None], *sides: str) -> Callable[..., None]:
    """Make the same copy for K and for V, with arguments ``src_k``, ``dst_v_layers`` and so on."""

    def both(**given: Any) -> None:
        for letter in "kv":
            mine = {}
            for side in sides:
                names = (f"{side}_{letter}", f"{side}_{letter}_layers")
                (name,) = (name for name in names if name in given)
                mine[side + name.removeprefix(f"{side}_{letter}")] = given[name]
            rest = {
                n: v
                for n, v in given.items()
                if not n.startswith(("src_k", "src_v", "dst_k", "dst_v"))
            }
            single(**mine, **rest)

    return both


def _head_offset(token: int, head: int, layer: int, shape: tuple[int, int, int]) -> int:
    """Return the rows before (token, head, layer) in [page, head, token of the page, layer]."""
    page, heads, layers = shape
    return ((token // page * heads + head) * page + token % page) * layers + layer


def _one_head_layer(
    *,
    src: Tensor,
    dst: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    item_size: int,
    src_layout_dim: int,
    page_size: int,
    head_num: int,
    **_: Any,
) -> None:
    row, shape = item_size // head_num, (page_size, head_num, src_layout_dim // item_size)
    for at, to in _pairs(src_indices, dst_indices):
        for head in range(head_num):
            source = src.data_ptr() + _head_offset(at, head, layer_id, shape) * row
            _move(dst.data_ptr() + to * item_size + head * row, source, row)


def _all_head_layers(
    *,
    src_layers: Tensor,
    dst: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    num_layers: int,
    page_size: int,
    head_num: int,
    **_: Any,
) -> None:
    row, shape = item_size // head_num, (page_size, head_num, num_layers)
    for layer, source in enumerate(src_layers.tolist()[:num_layers]):
        for at, to in _pairs(src_indices, dst_indices):
            for head in range(head_num):
                target = dst.data_ptr() + _head_offset(to, head, layer, shape) * row
                _move(target, source + at * item_size + head * row, row)


def transfer_kv_direct(
    *,
    src_layers: Sequence[Tensor],
    dst_layers: Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    page_size: int,
) -> None:
    """Copy by copy engine: runs of ``page_size`` rows, each given by its first index."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        for at, to in _pairs(src_indices[::page_size], dst_indices[::page_size]):
            target[to : to + page_size].copy_(source[at : at + page_size])


def transfer_kv_per_layer_direct_pf_lf(
    *,
    src_ptrs: Sequence[Tensor],
    dst_ptrs: Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    page_size: int,
) -> None:
    """Copy by copy engine, one layer out of pages that hold all layers."""
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        for at, to in _pairs(src_indices[::page_size], dst_indices[::page_size]):
            run = target[to : to + page_size]
            run.copy_(source[at // page_size, layer_id].reshape(run.shape))


def transfer_kv_all_layer_direct_lf_pf(
    *,
    src_ptrs: Sequence[Tensor],
    dst_ptrs: Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    page_size: int,
) -> None:
    """Copy by copy engine, all layers into pages that hold all layers: K's layers, then V's."""
    layers = len(src_ptrs) // len(dst_ptrs)
    for number, source in enumerate(src_ptrs):
        target, layer = dst_ptrs[number // layers], number % layers
        for at, to in _pairs(src_indices[::page_size], dst_indices[::page_size]):
            run = target[to // page_size, layer]
            run.copy_(source[at : at + page_size].reshape(run.shape))


def transfer_cache_dsv4_mla(
    *, src_ptrs: Tensor, dst_ptrs: Tensor, src_indices: Tensor, dst_indices: Tensor, **_: Any
) -> None:
    """Copy single C4 slots: 576 B of value and 8 B of scale, in pages of 64 slots and 37440 B."""
    if src_ptrs is None or dst_ptrs is None:
        raise TypeError("transfer_cache_dsv4_mla expects tables of pointers, got None")
    for source, target in zip(src_ptrs.tolist(), dst_ptrs.tolist(), strict=True):
        for at, to in _pairs(src_indices, dst_indices):
            for base, width in ((0, 576), (64 * 576, 8)):
                offsets = [slot // 64 * 37440 + base + slot % 64 * width for slot in (to, at)]
                _move(target + offsets[0], source + offsets[1], width)


def transfer_kv_mamba_lf_pf(src_ptrs: Tensor, **given: Any) -> None:
    """Copy the states of all layers to the host."""
    transfer_kv_all_layer_mla_lf_pf(src_layers=src_ptrs, **given)


def _staged_rows(
    ptr_src: Tensor, src_indices: Tensor, dst_indices: Tensor, dst: Tensor, page_size: int
) -> None:
    """Copy all layers of whole pages into rows that hold all layers; a page is given by its first index."""
    rows = dst.view(dst.shape[0], dst.shape[1], -1).view(torch.uint8)
    layers, width = rows.shape[1:]
    starts = src_indices[::page_size].repeat_interleave(page_size)
    source = starts // page_size * page_size + torch.arange(len(starts)) % page_size
    for layer, base in enumerate(ptr_src.tolist()[:layers]):
        for at, to in _pairs(source, dst_indices):
            _move(rows.data_ptr() + (to * layers + layer) * width, base + at * width, width)


def jit_transfer_hicache_all_layer_staged_lf_pf(
    *,
    k_ptr_src: Tensor,
    v_ptr_src: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    dst_k: Tensor,
    dst_v: Tensor,
    page_size: int,
    **_: Any,
) -> None:
    """Copy K and V through a staging buffer on the device."""
    for source, target in ((k_ptr_src, dst_k), (v_ptr_src, dst_v)):
        _staged_rows(source, src_indices, dst_indices, target, page_size)


def jit_transfer_hicache_all_layer_mla_staged_lf_pf(
    *,
    ptr_src: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    dst: Tensor,
    page_size: int,
    **_: Any,
) -> None:
    """Copy one tensor per layer through a staging buffer on the device."""
    _staged_rows(ptr_src, src_indices, dst_indices, dst, page_size)


def jit_transfer_hicache_one_layer_mla(
    *,
    cache_dst: Tensor,
    indices_dst: Tensor,
    cache_src: Tensor,
    indices_src: Tensor,
    **_: Any,
) -> None:
    """Copy one layer, with rows of any stride at either end."""
    for at, to in _pairs(indices_src, indices_dst):
        cache_dst[to].copy_(cache_src[at])


STAND_INS: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        transfer_kv_per_layer_mla,
        transfer_kv_all_layer_mla,
        transfer_kv_per_layer_mla_pf_lf,
        transfer_kv_all_layer_mla_lf_pf,
        transfer_kv_direct,
        transfer_kv_per_layer_direct_pf_lf,
        transfer_kv_all_layer_direct_lf_pf,
        transfer_cache_dsv4_mla,
        transfer_kv_mamba_lf_pf,
        jit_transfer_hicache_all_layer_staged_lf_pf,
        jit_transfer_hicache_all_layer_mla_staged_lf_pf,
        jit_transfer_hicache_one_layer_mla,
    )
} | {
    "transfer_kv_per_layer": _for_k_and_v(transfer_kv_per_layer_mla, "src", "dst"),
    "transfer_kv_all_layer": _for_k_and_v(transfer_kv_all_layer_mla, "src", "dst"),
    "transfer_kv_per_layer_pf_lf": _for_k_and_v(transfer_kv_per_layer_mla_pf_lf, "src", "dst"),
    "transfer_kv_all_layer_lf_pf": _for_k_and_v(transfer_kv_all_layer_mla_lf_pf, "src", "dst"),
    "transfer_kv_per_layer_ph_lf": _for_k_and_v(_one_head_layer, "src", "dst"),
    "transfer_kv_all_layer_lf_ph": _for_k_and_v(_all_head_layers, "src", "dst"),
    "transfer_kv_mamba_pf_lf": transfer_kv_per_layer_mla_pf_lf,
}


def install(modules: Iterable[ModuleType]) -> None:
    """Bind every stand-in by name in ``modules``, as importing the CUDA package would."""
    for module in modules:
        for name, function in STAND_INS.items():
            setattr(module, name, function)
