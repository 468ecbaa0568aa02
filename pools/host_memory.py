"""Host memory suited to device access: page-aligned, in huge pages, mapped on first touch."""

import mmap
from contextlib import suppress
from math import prod

import torch

__all__ = ["host_zeros"]


def host_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a zeroed, contiguous tensor on its own mapping: no two tensors share an OS page.

    Page-locking works on OS pages. The mapping asks for huge pages: a device or a core that reads
    scattered pages then has far fewer addresses to translate. It is private because the kernel
    ignores the request for shared memory unless ``shmem_enabled`` allows it, which by default it
    does not.
    """
    size = prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages refuses; the mapping still works
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape)
