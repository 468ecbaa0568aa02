# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""Builders for host pool classes of recent versions, over SGLang's own device pools."""

from types import SimpleNamespace
from typing import Any

import torch
from setups import DESCRIBED, Setup, pointers, random_bytes

__all__ = ["hisparse", "mxfp8", "unified"]

PAGE, SCALED_PAGE = 64, 128


def hisparse(_: str, layers: int, pages: int) -> Setup:
    """Build HiSparse's pool for MHA, 8 heads of 128."""
    from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.mem_cache.pool_host.mha import HiSparseMHATokenToKVPoolHost

    device = MHATokenToKVPool(
        size=pages * PAGE,
        page_size=PAGE,
        dtype=torch.bfloat16,
        head_num=8,
        head_dim=128,
        layer_num=layers,
        device="cuda",
        enable_memory_saver=False,
        start_layer=0,
        end_layer=layers,  # the default is the last layer's number, which leaves that layer out
    )
    k, v = device.k_buffer, device.v_buffer
    _fill([*k, *v])
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
        v_head_dim=128,
        dtype=torch.bfloat16,
        device=torch.device("cuda", 0),
    )
    pool = HiSparseMHATokenToKVPoolHost(
        *(info, 2.0, PAGE),
        device_capacity_tokens=pages * PAGE,
        start_layer=0,
        end_layer=layers,
    )
    return Setup(pool, PAGE, [*k, *v], PAGE, device, layers)


def mxfp8(layout: str, layers: int, pages: int) -> Setup:
    """Build 8 heads of 128 in fp8 with a scale for every 32 values; a page's scales are contiguous."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPoolMXFP8
    from sglang.srt.mem_cache.pool_host.mha_mxfp8 import MHATokenToKVPoolMXFP8Host

    device = MHATokenToKVPoolMXFP8(
        size=pages * SCALED_PAGE,
        page_size=SCALED_PAGE,
        dtype=torch.float8_e4m3fn,
        head_num=8,
        head_dim=128,
        layer_num=layers,
        device="cuda",
        enable_memory_saver=False,
    )
    buffers = [
        *(*device.k_buffer, *device.v_buffer),
        *(*device.k_scale_buffer, *device.v_scale_buffer),
    ]
    _fill(buffers)
    given: tuple[Any, ...] = (2.0, 0, SCALED_PAGE, layout)
    if DESCRIBED:
        pool = MHATokenToKVPoolMXFP8Host(
            device._mha_buffer_info(),  # noqa: SLF001 - as SGLang's own builder asks for it
            *given,
            device_capacity_tokens=device.size,
            start_layer=0,
            end_layer=layers,
        )
    else:
        pool = MHATokenToKVPoolMXFP8Host(device, *given)
    whole = [buffer.view(torch.uint8).reshape(pages + 1, -1) for buffer in buffers]
    return Setup(pool, SCALED_PAGE, whole, 1, device, layers)


def unified(layout: str, _: int, pages: int) -> Setup:
    """Build the full side of a unified pool, whose pages hold all layers, with every page allocated."""
    from sglang.srt.mem_cache.pool_host.unified import UnifiedPageEnvelopeHostPool

    item = 5 * PAGE * 2048
    buffer = random_bytes(pages + 1, item)
    devices = [_side(buffer, item, grows, pages) for grows in ("up", "down")]
    full, swa = UnifiedPageEnvelopeHostPool.build_hybrid_swa_pool_pair(
        device_pools=devices,
        host_to_device_ratio=2.0,
        host_size=0,
        page_size=PAGE,
        layout=layout,
        allocator_type="default",
        pin_memory=True,
    )
    full.alloc(pages * PAGE)
    return Setup(full, PAGE, [buffer], 1, devices[0], 1, keep=swa)


def _side(buffer: torch.Tensor, item: int, grows: str, pages: int) -> SimpleNamespace:
    """Build one side of a unified device pool."""
    return SimpleNamespace(
        get_page_envelope_buffer=lambda: buffer,
        get_contiguous_buf_infos=lambda: ([buffer.data_ptr()], [buffer.nbytes], [item]),
        page_size=PAGE,
        size=pages * PAGE,
        host_capacity_tokens=None,
        grow_direction=grows,
        start_layer=0,
        end_layer=1,
        layer_num=1,
        device="cuda",
    )


def _fill(buffers: list[torch.Tensor]) -> None:
    for buffer in buffers:
        bytes_ = buffer.view(torch.uint8)
        bytes_.copy_(random_bytes(*bytes_.shape))
