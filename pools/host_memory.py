"""Host memory fit for a device to reach: page-aligned, in huge pages, mapped when touched."""

import mmap
from contextlib import suppress
from math import prod

import torch

__all__ = ["host_zeros"]


def host_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A zeroed, contiguous tensor on a mapping of its own: no two share a page to be locked.

    Huge pages are asked for: a device that gathers scattered pages looks up far fewer addresses.
    """
    size = prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them says so; nothing else changes
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape)
