# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""Builders for every host pool class of the SGLang on the path, at sizes that models use."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from setups import (
    DECLARED,
    DESCRIBED,
    DEVICE,
    Build,
    Setup,
    Tensors,
    anchor,
    device_like,
    host_class,
    pointers,
    random_bytes,
)
from sglang.srt.mem_cache import memory_pool_host

__all__ = [
    "asymmetric",
    "index_k",
    "k_only",
    "mamba",
    "mamba_beside",
    "mha",
    "mha_of_sglang",
    "mla",
    "mla_sharded",
    "nvfp4",
    "qsa",
    "v4",
    "v4_state",
]

PAGE = 64


def mha(layout: str, layers: int, pages: int, v_dim: int = 128) -> Setup:
    """Build K and V of 8 heads of 128; another ``v_dim`` takes the class for two widths."""
    slots = (pages + 1) * PAGE
    k = [random_bytes(slots, 8, 128, dtype=torch.bfloat16) for _ in range(layers)]
    v = [random_bytes(slots, 8, v_dim, dtype=torch.bfloat16) for _ in range(layers)]
    build = _described_mha if DESCRIBED else _mha
    pool = build(k, v, layout, v_dim)
    return Setup(pool, PAGE, [*k, *v], PAGE, getattr(pool, "device_pool", None), layers)


def mha_of_sglang(layout: str, layers: int, pages: int) -> Setup:
    """Build a host pool over SGLang's own device pool, through whose accessors a model reads."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    device = MHATokenToKVPool(
        size=pages * PAGE,
        page_size=PAGE,
        dtype=torch.bfloat16,
        head_num=8,
        head_dim=128,
        layer_num=layers,
        device="cuda",
        enable_memory_saver=False,
    )
    for buffer in (*device.k_buffer, *device.v_buffer):
        buffer.copy_(random_bytes(*buffer.shape, dtype=torch.bfloat16))
    if DESCRIBED:
        pool = _described_mha(device.k_buffer, device.v_buffer, layout, 128)
    else:
        pool = host_class("MHATokenToKVPoolHost", "mha")(device, 2.0, 0, PAGE, layout)
    return Setup(pool, PAGE, [*device.k_buffer, *device.v_buffer], PAGE, device, layers)


def _mha(k: Tensors, v: Tensors, layout: str, v_dim: int) -> Any:
    name = "MHATokenToKVPoolHost" if v_dim == 128 else "AsymmetricMHATokenToKVPoolHost"
    device = device_like(
        len(k),
        size=len(k[0]) - PAGE,
        head_num=8,
        head_dim=128,
        v_head_dim=v_dim,
        row_dim=8 * 128,
        k_buffer=k,
        v_buffer=v,
        k_data_ptrs=pointers(k),
        v_data_ptrs=pointers(v),
    )
    return host_class(name, "mha")(device, 2.0, 0, PAGE, layout)


def _described_mha(k: Tensors, v: Tensors, layout: str, v_dim: int) -> Any:
    from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
    from sglang.srt.mem_cache.pool_host.mha import get_mha_host_pool_cls

    info = MHABufferInfo(
        buffers=KVBuffers(
            k=tuple(k),
            v=tuple(v),
            k_data_ptrs=pointers(k),
            v_data_ptrs=pointers(v),
            layout=KVBufferLayout.NHD,
        ),
        page_size=PAGE,
        head_num=8,
        head_dim=128,
        v_head_dim=v_dim,
        dtype=torch.bfloat16,
        device=DEVICE,
    )
    capacity = {"device_capacity_tokens": len(k[0]) - PAGE, "start_layer": 0, "end_layer": len(k)}
    return get_mha_host_pool_cls(info)(info, 2.0, 0, PAGE, layout, **capacity)


def asymmetric(layout: str, layers: int, pages: int) -> Setup:
    """Build K and V of two widths."""
    return mha(layout, layers, pages, v_dim=64)


def mla(layout: str, layers: int, pages: int, ranks: int = 1) -> Setup:
    """Build latent rows of 576, with the indices distributed over ``ranks`` ranks."""
    slots, page = (pages + 1) * PAGE, PAGE * ranks
    rows = [random_bytes(slots, 1, 576, dtype=torch.bfloat16) for _ in range(layers)]
    shard: dict[str, Any] = {"dcp_size": ranks, "dcp_rank": ranks - 1} if ranks > 1 else {}
    if DESCRIBED:
        from sglang.srt.mem_cache.device_pool_info import MLABufferInfo
        from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

        info = MLABufferInfo(
            buffers=tuple(rows),
            data_ptrs=pointers(rows),
            layer_indices=tuple(range(layers)),
            device_layer_num=layers,
            page_size=PAGE,
            kv_lora_rank=512,
            qk_rope_head_dim=64,
            kv_cache_dim=576,
            dtype=torch.bfloat16,
            device=DEVICE,
        )
        capacity = {"device_capacity_tokens": slots - PAGE, "target_layer_num": layers}
        ends = {"start_layer": 0, "end_layer": layers}
        pool = MLATokenToKVPoolHost(info, 2.0, 0, page, layout, **ends, **capacity, **shard)
    else:
        device = device_like(
            layers,
            size=slots - PAGE,
            kv_lora_rank=512,
            qk_rope_head_dim=64,
            kv_buffer=rows,
            data_ptrs=pointers(rows),
        )
        pool = host_class("MLATokenToKVPoolHost", "mla")(device, 2.0, 0, page, layout, **shard)
    return Setup(pool, page, rows, PAGE, getattr(pool, "device_pool", None), layers)


def mla_sharded(layout: str, layers: int, pages: int) -> Setup:
    """Build the pool of the second of two context-parallel ranks."""
    return mla(layout, layers, pages, ranks=2)


def k_only(layout: str, layers: int, pages: int) -> Setup:
    """Build index-K rows without V."""
    k = [random_bytes((pages + 1) * PAGE, 1, 128, dtype=torch.bfloat16) for _ in range(layers)]
    device = device_like(layers, head_num=1, head_dim=128, k_buffer=k, k_data_ptrs=pointers(k))
    host = anchor(layout, PAGE, 2 * pages)
    pool = host_class("MHATokenToKOnlyPoolHost", "mha")(device, host, layout)
    return Setup(pool, PAGE, k, PAGE, device, layers)


def index_k(layout: str, layers: int, pages: int, *, bf16: bool = False) -> Setup:
    """Build index-K pages of 64 tokens, fp8 with scales, or 256 B per token on the device with ``bf16``."""
    if bf16:
        rows = [random_bytes(pages + 1, 64 * 128, dtype=torch.bfloat16) for _ in range(layers)]
    else:
        rows = [random_bytes(pages + 1, 8448) for _ in range(layers)]
    device = device_like(
        layers,
        store_dtype=torch.uint8,
        index_head_dim=128,
        quant_block_size=128,
        page_size=64,
        index_page_size=64,
        index_k_with_scale_buffer=rows,
        index_k_with_scale_buffer_dtype=rows[0].dtype,
    )
    host = anchor(layout, 64, 2 * pages)
    if DECLARED:
        pool = _declared_index_k(device, host, layers)
    else:
        pool = host_class("DSAIndexerPoolHost", "dsa")(device, host, layout)
    return Setup(pool, 64, rows, 1, device, layers)


def _declared_index_k(device: Any, host: Any, layers: int) -> Any:
    from sglang.srt.mem_cache.hicache_storage import PoolName
    from sglang.srt.mem_cache.pool_host.dsa import DSAIndexerHostPoolBuilder, DSAIndexerPoolHost
    from sglang.srt.mem_cache.pool_host.host_pool_decl import HostPoolDecl, HostPoolStorageInfo

    decl = HostPoolDecl(
        pool_name=PoolName.INDEXER,
        device_pool=device,
        indices_from_pool=PoolName.KV,
        layout_source=PoolName.KV,
        storage_info=HostPoolStorageInfo(bytes_per_token_per_layer=132, dtype=torch.uint8),
        host_pool_builder=DSAIndexerHostPoolBuilder(),
        owned_device_layers=tuple(range(layers)),
    )
    return DSAIndexerPoolHost(decl, host)


def v4(name: str, item: int, page: int) -> Build:
    """Build a DeepSeek-V4 pool of rows of ``item`` bytes, ``page`` indices each."""

    def build(layout: str, layers: int, pages: int) -> Setup:
        rows = [random_bytes(pages + 1, item) for _ in range(layers)]
        pool = memory_pool_host.DeepSeekV4PagedHostPool(
            name, rows, item, num_host_pages=2 * pages, slot_page_size=page, layout=layout
        )
        return Setup(pool, page, rows, 1, device_like(layers), layers)

    return build


def v4_state(layout: str, layers: int, pages: int) -> Setup:
    """Build the compressor states of C4: a ring of 8 slots for each sliding-window page of 256."""
    from sglang.srt.mem_cache.deepseek_v4_compress_state import CompressStatePool

    states = [
        CompressStatePool(
            size=pages * 8,
            ring_size=8,
            overlap=True,
            head_dim=512,
            dtype=torch.float32,
            device="cuda",
            enable_memory_saver=False,
            ratio=4,
            swa_page_size=256,
        )
        for _ in range(layers)
    ]
    for state in states:
        state.kv_score_buffer.kv_score.normal_()
    pool = memory_pool_host.DeepSeekV4StateHostPool(
        "deepseek_v4_c4_state", states, num_host_pages=2 * pages, swa_page_size=256, layout=layout
    )
    return Setup(pool, 256, pool.device_page_views, 1, device_like(layers), layers, keep=states)


def mamba_beside(layout: str, layers: int, pages: int) -> Setup:
    """Build the same with two more states that a model registers besides its layers' own."""
    rows = torch.randn(pages + 1, 32 * layers, device=DEVICE)
    return mamba(layout, layers, pages, beside=(rows, rows.reshape(len(rows), 32, -1).bfloat16()))


def mamba(layout: str, layers: int, pages: int, beside: Sequence[torch.Tensor] = ()) -> Setup:
    """Build a temporal and a convolution state, where a slot is a page."""
    temporal = torch.randn(layers, pages + 1, 8, 64, 64, device=DEVICE)
    convolution = torch.randn(layers, pages + 1, 512, 4, device=DEVICE).bfloat16()
    if DECLARED:
        from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
        from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost

        given = {"extra_checkpoint_buffers": tuple(beside)} if beside else {}
        info = MambaStateBufferInfo(temporal=temporal, conv=(convolution,), **given)
        pool = MambaPoolHost(info, 2.0, 0, device_capacity=pages + 1, layout=layout)
        device = device_like(layers)
    else:
        device = device_like(
            layers,
            size=pages + 1,
            num_mamba_layers=layers,
            mamba_cache=SimpleNamespace(temporal=temporal, conv=[convolution]),
        )
        pool = host_class("MambaPoolHost", "mamba")(device, 2.0, 0, layout=layout)
    devices = [*temporal.unbind(0), *convolution.unbind(0), *beside]
    return Setup(pool, 1, devices, 1, device, layers)


def nvfp4(layout: str, layers: int, pages: int) -> Setup:
    """Build packed index pages of 128 tokens."""
    from sglang.srt.mem_cache.device_pool_info import PageRowBufferInfo
    from sglang.srt.mem_cache.pool_host import minimax_m3_nvfp4

    slab = random_bytes(layers, pages + 1, 9216)
    info = PageRowBufferInfo(
        slab=slab,
        rows=tuple(slab.unbind(0)),
        row_bytes=9216,
        page_size=128,
        num_pages=pages + 1,
    )
    pool = minimax_m3_nvfp4.MiniMaxM3Nvfp4IndexKPoolHost(
        info, anchor(layout, 128, 2 * pages), layout, start_layer=0, end_layer=layers
    )
    return Setup(pool, 128, list(slab.unbind(0)), 1, device_like(layers), layers)


def qsa(layout: str, layers: int, pages: int) -> Setup:
    """Build compressed keys: 16 for a page of 64 tokens."""
    from sglang.srt.mem_cache.pool_host.qsa import QSAIndexerPoolHost

    keys = [random_bytes((pages + 1) * 16, 1, 128, dtype=torch.bfloat16) for _ in range(layers)]
    device = device_like(layers, qsa_compress_ratio=4, qsa_compressed_k_buffer_pool=keys)
    return Setup(
        QSAIndexerPoolHost(device, anchor(layout, 64, 2 * pages)), 64, keys, 16, device, layers
    )
