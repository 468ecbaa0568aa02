# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""Host pools whose rows are pages or states: index-K, DeepSeek-V4, Mamba, NVFP4, QSA."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from released_base import (
    DECLARED,
    DEVICE_PAGES,
    HOST_PAGES,
    LAYERS,
    Setup,
    anchor,
    device_like,
    host_class,
    random_bytes,
)
from sglang.srt.mem_cache import memory_pool_host

__all__ = ["index_k", "mamba", "mamba_beside", "nvfp4", "nvfp4_main", "qsa", "v4", "v4_state"]


def index_k(layout: str, *, bf16: bool = False) -> Setup:
    """Return index-K pages of 64 tokens in fp8 with scales; with ``bf16`` the device has 256 B per token."""
    if bf16:
        pages = [random_bytes(DEVICE_PAGES, 64 * 128) for _ in range(LAYERS)]
    else:
        pages = [random_bytes(DEVICE_PAGES, 8448, dtype=torch.uint8) for _ in range(LAYERS)]
    device = device_like(
        store_dtype=torch.uint8,
        index_head_dim=128,
        quant_block_size=128,
        index_k_with_scale_buffer=pages,
        index_k_with_scale_buffer_dtype=pages[0].dtype,
    )
    if DECLARED:
        pool = _described_index_k(device, layout)
    else:
        pool = host_class("DSAIndexerPoolHost", "dsa")(device, anchor(), layout, pin_memory=False)
    return Setup(pool, 64, pages, 1, device)


def _described_index_k(device: Any, layout: str) -> Any:
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
        owned_device_layers=tuple(range(LAYERS)),
    )
    return DSAIndexerPoolHost(decl, anchor(layout), pin_memory=False)


def v4(name: str, item: int, page: int) -> Callable[[str], Setup]:
    """Return a DeepSeek-V4 pool of rows of ``item`` bytes, ``page`` indices each."""

    def build(layout: str) -> Setup:
        pages = [random_bytes(DEVICE_PAGES, item, dtype=torch.uint8) for _ in range(LAYERS)]
        pool = memory_pool_host.DeepSeekV4PagedHostPool(
            name,
            pages,
            item,
            num_host_pages=HOST_PAGES,
            slot_page_size=page,
            layout=layout,
            pin_memory=False,
        )
        return Setup(pool, page, pages, 1, device_like())

    return build


def v4_state(layout: str) -> Setup:
    """Return compressor states of C4: a ring of 8 slots per sliding-window page of 64."""
    from sglang.srt.mem_cache.deepseek_v4_compress_state import CompressStatePool

    states = [
        CompressStatePool(
            size=64,
            ring_size=8,
            overlap=True,
            head_dim=16,
            dtype=torch.float32,
            device="cpu",
            enable_memory_saver=False,
            ratio=4,
            swa_page_size=64,
        )
        for _ in range(LAYERS)
    ]
    for state in states:
        buffer = state.kv_score_buffer.kv_score
        buffer.copy_(torch.rand(buffer.shape))
    pool = memory_pool_host.DeepSeekV4StateHostPool(
        "deepseek_v4_c4_state",
        states,
        num_host_pages=HOST_PAGES,
        swa_page_size=64,
        layout=layout,
        pin_memory=False,
    )
    return Setup(pool, 64, pool.device_page_views, 1, device_like())


def mamba(layout: str, *, beside: Sequence[torch.Tensor] = ()) -> Setup:
    """Return temporal and convolution states of 2 layers, and states of no layer; a slot is a page."""
    temporal = torch.rand(LAYERS, DEVICE_PAGES, 2, 4, 4)
    convolution = torch.rand(LAYERS, DEVICE_PAGES, 8, 3).bfloat16()
    if DECLARED:
        from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
        from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost

        given = {"extra_checkpoint_buffers": tuple(beside)} if beside else {}
        info = MambaStateBufferInfo(temporal=temporal, conv=(convolution,), **given)
        pool = MambaPoolHost(
            info, 2.0, 0, device_capacity=DEVICE_PAGES, pin_memory=False, layout=layout
        )
        device = device_like()
    else:
        device = device_like(
            size=DEVICE_PAGES,
            num_mamba_layers=LAYERS,
            mamba_cache=SimpleNamespace(temporal=temporal, conv=[convolution]),
        )
        pool = host_class("MambaPoolHost", "mamba")(device, 2.0, 0, pin_memory=False, layout=layout)
    return Setup(pool, 1, [*temporal.unbind(0), *convolution.unbind(0), *beside], 1, device)


def mamba_beside(layout: str) -> Setup:
    """Return the same with two additional states of two dtypes that a model registers."""
    beside = (torch.rand(DEVICE_PAGES, 6), torch.rand(DEVICE_PAGES, 2, 5).bfloat16())
    return mamba(layout, beside=beside)


def nvfp4(layout: str, *, main: bool = False) -> Setup:
    """Return packed page rows of 128 tokens, of the index or of K and V."""
    from sglang.srt.mem_cache.device_pool_info import PageRowBufferInfo
    from sglang.srt.mem_cache.pool_host import minimax_m3_nvfp4

    slab = random_bytes(LAYERS, DEVICE_PAGES, 640, dtype=torch.uint8)
    info = PageRowBufferInfo(
        slab=slab, rows=tuple(slab.unbind(0)), row_bytes=640, page_size=128, num_pages=DEVICE_PAGES
    )
    layers = {"pin_memory": False, "start_layer": 0, "end_layer": LAYERS}
    if main:
        tokens = (DEVICE_PAGES - 1) * 128
        pool = minimax_m3_nvfp4.MiniMaxM3Nvfp4MainKVPoolHost(
            *(info, 2.0, 0, 128, layout), device_capacity_tokens=tokens, **layers
        )
    else:
        pool = minimax_m3_nvfp4.MiniMaxM3Nvfp4IndexKPoolHost(
            info, anchor(layout, 128), layout, **layers
        )
    return Setup(pool, 128, list(slab.unbind(0)), 1, device_like())


def nvfp4_main(layout: str) -> Setup:
    """Return the pool of K and V."""
    return nvfp4(layout, main=True)


def qsa(layout: str) -> Setup:
    """Return compressed keys: 16 per page of 64 tokens."""
    from sglang.srt.mem_cache.pool_host.qsa import QSAIndexerPoolHost

    keys = [random_bytes(DEVICE_PAGES * 16, 1, 32) for _ in range(LAYERS)]
    device = device_like(qsa_compress_ratio=4, qsa_compressed_k_buffer_pool=keys)
    host = SimpleNamespace(**vars(anchor(layout)), pin_memory=False)
    return Setup(QSAIndexerPoolHost(device, host), 64, keys, 16, device)
