"""Random memory, and views of it as tiles."""

from collections.abc import Sequence

import torch

from hicache_dbg.tracer.view import Run, View

__all__ = ["CONTIGUOUS", "GIB", "one_piece", "random_bytes", "view_of"]

GIB = 1 << 30
CONTIGUOUS = (1728, 4096, 8448, 16384, 37376, 73728)


def one_piece(memory: torch.Tensor, size: int, *, shift: int = 0, device: str = "") -> View:
    """View each layer of ``memory`` [layers, bytes] as contiguous tiles of ``size`` bytes."""
    pages = (memory[0].nbytes - shift) // size
    return view_of(memory, (Run(0, size, size),), size, pages, shift=shift, device=device)


def view_of(
    memory: torch.Tensor,
    runs: tuple[Run, ...],
    stride: int,
    pages: int,
    *,
    slots: int = 1,
    shift: int = 0,
    device: str = "",
) -> View:
    """Return a view of each layer of ``memory`` [layers, bytes]."""
    return View(
        pool="bench",
        component="kv",
        tier="device",
        layout="layer_first",
        dtype="uint8",
        itemsize=1,
        bases=tuple(layer.data_ptr() + shift for layer in memory),
        page_stride=stride,
        page_span=stride,
        pages=pages,
        slots_per_page=slots,
        runs=runs,
        device=device or str(memory.device),
        owner=memory,
    )


def random_bytes(shape: Sequence[int], device: str) -> torch.Tensor:
    """Return random uint8 of ``shape``, whose last extent must be a multiple of 8."""
    words = (*shape[:-1], shape[-1] // 8)
    return torch.randint(-(1 << 62), 1 << 62, words, device=device).view(torch.uint8)
