# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""The host pool of MXFP8: rows of values, and the scales of each page in one block beside them."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from released_base import DESCRIBED, DEVICE_PAGES, LAYERS, Setup, random_bytes

__all__ = ["PAGE", "mxfp8"]

PAGE = 128
_HOMES = tuple(f"sglang.srt.mem_cache.pool_host.{name}" for name in ("mha", "mha_mxfp8"))


def mxfp8(layout: str) -> Setup:
    """Return 2 heads of 32 with a scale per 32 values, over SGLang's own device pool.

    The CUDA queries of the host pool's constructor are answered as on a GPU with its kernels.
    """
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPoolMXFP8

    device = MHATokenToKVPoolMXFP8(
        size=(DEVICE_PAGES - 1) * PAGE,
        page_size=PAGE,
        dtype=torch.float8_e4m3fn,
        head_num=2,
        head_dim=32,
        layer_num=LAYERS,
        device="cpu",
        enable_memory_saver=False,
    )
    rows = [*device.k_buffer, *device.v_buffer]
    scales = [*device.k_scale_buffer, *device.v_scale_buffer]
    for buffer in (*rows, *scales):
        buffer.view(torch.uint8).copy_(random_bytes(*buffer.shape, dtype=torch.uint8))
    with pytest.MonkeyPatch.context() as patch:
        _with_kernels(patch)
        pool = _host(device, layout)
    pages = [buffer.view(torch.uint8).reshape(DEVICE_PAGES, -1) for buffer in (*rows, *scales)]
    return Setup(pool, PAGE, pages, 1, device)


def _host(device: Any, layout: str) -> Any:
    from sglang.srt.mem_cache.pool_host.mha_mxfp8 import MHATokenToKVPoolMXFP8Host

    if not DESCRIBED:
        return MHATokenToKVPoolMXFP8Host(device, 2.0, 0, PAGE, layout, pin_memory=False)
    return MHATokenToKVPoolMXFP8Host(
        device._mha_buffer_info(),
        *(2.0, 0, PAGE, layout),
        pin_memory=False,
        device_capacity_tokens=device.size,
        start_layer=0,
        end_layer=LAYERS,
    )


def _with_kernels(patch: pytest.MonkeyPatch) -> None:
    answers = {
        "_is_cuda": True,
        "current_platform": SimpleNamespace(
            capabilities=SimpleNamespace(hicache_device_kernels=True)
        ),
        "can_use_write_back_jit_kernel": lambda **_: True,
        "can_use_hicache_jit_kernel": lambda **_: False,  # of two ways to load the one for all
    }
    for home in map(import_module, _HOMES):
        for name in answers.keys() & vars(home).keys():
            patch.setattr(home, name, answers[name])
