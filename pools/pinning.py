"""Page-lock host memory in chunks, and record the actual outcome."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hicache_dbg.pools.cuda_runtime import clear_error

__all__ = ["NO_CUDA", "PinState", "pin", "unpin"]

#: Recorded return code when there is no CUDA runtime.
NO_CUDA = -1
CHUNK_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class PinState:
    """Whether host memory is page-locked: requested, actual, and CUDA's answer.

    ``bytes`` and ``chunks`` count what is registered; ``return_code`` is the last result of
    ``cudaHostRegister`` (0 is success), or ``NO_CUDA``.
    """

    requested: bool
    pinned: bool
    return_code: int
    bytes: int
    chunks: int


def pin(buffers: Sequence[torch.Tensor], chunk_bytes: int = CHUNK_BYTES) -> PinState:
    """Register the memory of each 1-D ``uint8`` tensor; a refused chunk unregisters all others."""
    if not torch.cuda.is_available():
        return PinState(requested=True, pinned=False, return_code=NO_CUDA, bytes=0, chunks=0)
    cudart = _cudart()
    done: list[tuple[int, int]] = []
    for address, size in _chunks(buffers, chunk_bytes):
        code = int(cudart.cudaHostRegister(address, size, 0))
        if code:
            clear_error()
            _unregister(start for start, _ in done)
            return PinState(requested=True, pinned=False, return_code=code, bytes=0, chunks=0)
        done.append((address, size))
    total = sum(size for _, size in done)
    return PinState(requested=True, pinned=True, return_code=0, bytes=total, chunks=len(done))


def unpin(buffers: Sequence[torch.Tensor], chunk_bytes: int = CHUNK_BYTES) -> None:
    """Undo :func:`pin` for the same tensors and ``chunk_bytes``."""
    _unregister(address for address, _ in _chunks(buffers, chunk_bytes))


def _unregister(addresses: Iterator[int]) -> None:
    cudart = _cudart()
    for address in addresses:
        if int(cudart.cudaHostUnregister(address)):
            clear_error()


def _cudart() -> Any:
    torch.cuda.init()
    return torch.cuda.cudart()


def _chunks(buffers: Sequence[torch.Tensor], chunk_bytes: int) -> Iterator[tuple[int, int]]:
    for memory in buffers:
        for start in range(0, memory.numel(), chunk_bytes):
            yield memory.data_ptr() + start, min(chunk_bytes, memory.numel() - start)
