# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""SGLang's own allocators, sized for the pools that tests build."""

from typing import Any

import torch
from released_rows import mha_of_sglang, mla
from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool

__all__ = ["logical", "paged", "states", "token"]


def logical() -> Any:
    """Return the allocator of the anchor that holds no bytes."""
    return LogicalHostPool(16 * 256, 256)


def token() -> Any:
    """Return an allocator with one token per page."""
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

    device = mha_of_sglang("layer_first").pool_device
    return TokenToKVPoolAllocator(24, torch.bfloat16, "cpu", device, need_sort=False)


def paged() -> Any:
    """Return an allocator with four tokens per page."""
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator

    device = mha_of_sglang("layer_first").pool_device
    return PagedTokenToKVPoolAllocator(24, 4, torch.bfloat16, "cpu", device, need_sort=False)


def states() -> Any:
    """Return an allocator of state slots, one per request."""
    from sglang.srt.mem_cache.allocator.mamba import MambaSlotAllocator

    mla("layer_first")  # tracing begins with the first host pool
    return MambaSlotAllocator(8, "cpu")
