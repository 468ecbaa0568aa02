# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""Host pools whose rows are tokens: MHA, MLA, and an index without V."""

from typing import Any

import torch
from released_base import (
    DESCRIBED,
    DEVICE_PAGES,
    LAYERS,
    Setup,
    Tensors,
    anchor,
    device_like,
    host_class,
    pointers,
    random_bytes,
)

__all__ = ["asymmetric", "k_only", "mha", "mha_of_sglang", "mha_with_drafts", "mla", "mla_sharded"]

_PAGE = 4
_SLOTS = DEVICE_PAGES * _PAGE


def mha(layout: str, v_dim: int = 8) -> Setup:
    """Return 2 heads of 8; another ``v_dim`` selects the class for two widths."""
    k = [random_bytes(_SLOTS, 2, 8) for _ in range(LAYERS)]
    v = [random_bytes(_SLOTS, 2, v_dim) for _ in range(LAYERS)]
    if DESCRIBED:
        pool = _described_mha(k, v, layout, v_dim)
    else:
        name = "MHATokenToKVPoolHost" if v_dim == 8 else "AsymmetricMHATokenToKVPoolHost"
        cls = host_class(name, "mha")
        device = device_like(
            size=_SLOTS - _PAGE,
            head_num=2,
            head_dim=8,
            v_head_dim=v_dim,
            row_dim=2 * 8,
            k_buffer=k,
            v_buffer=v,
            k_data_ptrs=pointers(k),
            v_data_ptrs=pointers(v),
        )
        pool = cls(device, 2.0, 0, _PAGE, layout, pin_memory=False)
    return Setup(pool, _PAGE, [*k, *v], _PAGE, getattr(pool, "device_pool", None))


def mha_of_sglang(layout: str) -> Setup:
    """Return a host pool over SGLang's own device pool, through whose accessors the model reads."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    device = MHATokenToKVPool(
        size=_SLOTS - _PAGE,
        page_size=_PAGE,
        dtype=torch.bfloat16,
        head_num=2,
        head_dim=8,
        layer_num=LAYERS,
        device="cpu",
        enable_memory_saver=False,
    )
    for buffer in (*device.k_buffer, *device.v_buffer):
        buffer.copy_(random_bytes(*buffer.shape))
    if DESCRIBED:
        pool = _described_mha(device.k_buffer, device.v_buffer, layout, 8)
    else:
        pool = host_class("MHATokenToKVPoolHost", "mha")(
            device, 2.0, 0, _PAGE, layout, pin_memory=False
        )
    return Setup(pool, _PAGE, [*device.k_buffer, *device.v_buffer], _PAGE, device)


def _described_mha(k: Tensors, v: Tensors, layout: str, v_dim: int, drafts: int = 0) -> Any:
    """Return a description whose last ``drafts`` layers belong to one draft model each."""
    from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
    from sglang.srt.mem_cache.pool_host.mha import get_mha_host_pool_cls

    def described(first: int, last: int) -> Any:
        buffers = KVBuffers(
            k=tuple(k[first:last]),
            v=tuple(v[first:last]),
            k_data_ptrs=pointers(k[first:last]),
            v_data_ptrs=pointers(v[first:last]),
            layout=KVBufferLayout.NHD,
        )
        return MHABufferInfo(
            buffers=buffers,
            page_size=_PAGE,
            head_num=2,
            head_dim=8,
            v_head_dim=v_dim,
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
        )

    targets = len(k) - drafts
    info = described(0, targets)
    packed = [described(layer, layer + 1) for layer in range(targets, len(k))]
    return get_mha_host_pool_cls(info)(
        info,
        2.0,
        0,
        _PAGE,
        layout,
        pin_memory=False,
        device_capacity_tokens=_SLOTS - _PAGE,
        start_layer=0,
        end_layer=targets,
        **({"draft_buffer_infos": packed} if drafts else {}),
    )


def mha_with_drafts(layout: str, drafts: int) -> Setup:
    """Return two layers of a model and one of each draft model, packed into one host pool."""
    k, v = ([random_bytes(_SLOTS, 2, 8) for _ in range(LAYERS + drafts)] for _ in range(2))
    pool = _described_mha(k, v, layout, 8, drafts)
    return Setup(pool, _PAGE, [*k, *v], _PAGE)


def asymmetric(layout: str) -> Setup:
    """Return K and V of two widths."""
    return mha(layout, v_dim=16)


def mla(layout: str, ranks: int = 1) -> Setup:
    """Return latent rows of 24; with ``ranks`` the indices are distributed over that many."""
    rows = [random_bytes(_SLOTS, 1, 24) for _ in range(LAYERS)]
    page = _PAGE * ranks
    shard: dict[str, Any] = {"dcp_size": ranks, "dcp_rank": ranks - 1} if ranks > 1 else {}
    if DESCRIBED:
        from sglang.srt.mem_cache.device_pool_info import MLABufferInfo
        from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

        info = MLABufferInfo(
            buffers=tuple(rows),
            data_ptrs=pointers(rows),
            layer_indices=tuple(range(LAYERS)),
            device_layer_num=LAYERS,
            page_size=_PAGE,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            kv_cache_dim=24,
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
        )
        capacity = {"device_capacity_tokens": _SLOTS - _PAGE, "target_layer_num": LAYERS}
        pool = MLATokenToKVPoolHost(
            *(info, 2.0, 0, page, layout),
            pin_memory=False,
            start_layer=0,
            end_layer=LAYERS,
            **capacity,
            **shard,
        )
    else:
        device = device_like(
            size=_SLOTS - _PAGE,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            kv_buffer=rows,
            data_ptrs=pointers(rows),
        )
        pool = host_class("MLATokenToKVPoolHost", "mla")(
            device, 2.0, 0, page, layout, pin_memory=False, **shard
        )
    return Setup(pool, page, rows, _PAGE, getattr(pool, "device_pool", None))


def mla_sharded(layout: str) -> Setup:
    """Return the pool of the second of two context-parallel ranks."""
    return mla(layout, ranks=2)


def k_only(layout: str) -> Setup:
    """Return index-K rows without V."""
    k = [random_bytes(_SLOTS, 1, 16) for _ in range(LAYERS)]
    device = device_like(head_num=1, head_dim=16, k_buffer=k)
    pool = host_class("MHATokenToKOnlyPoolHost", "mha")(
        device, anchor(layout, _PAGE), layout, pin_memory=False
    )
    return Setup(pool, _PAGE, k, _PAGE, device)
