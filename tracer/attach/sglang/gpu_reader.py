"""Reading words of a device's memory, on a thread that may wait for them."""

import threading
from collections.abc import Callable

import torch

from hicache_dbg.tracer.digest.driver import driven, driver

__all__ = ["Reader"]

_SMALLEST = 1 << 14


class Reader:
    """Reads int64 tensors of one device on a stream of its own, without holding the GIL.

    Args:
        device: The device.
        send: Enqueues a copy into pinned memory, given target, source, words and stream. It should be a
            kernel: a copy engine runs it behind all the copies queued there.
    """

    def __init__(self, device: torch.device, send: Callable[[int, int, int, int], None]) -> None:
        self.stream = torch.cuda.Stream(device)
        self._send = send
        self._lock = threading.Lock()
        self._room = torch.empty(_SMALLEST, dtype=torch.int64, pin_memory=True)
        with torch.cuda.stream(self.stream):
            one = torch.zeros(1, dtype=torch.int64, device=device)
        self.read(one)  # compiles the kernel

    def read(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Return copies on the CPU, in one dimension. The work that wrote the tensors must be over."""
        with self._lock, torch.cuda.device(self.stream.device):
            return self._read(tensors)

    def _read(self, tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        sizes = [tensor.numel() for tensor in tensors]
        total = sum(sizes)
        if total > len(self._room):
            self._room = torch.empty(1 << total.bit_length(), dtype=torch.int64, pin_memory=True)
        stream, at, kept = self.stream.cuda_stream, 0, list[torch.Tensor]()
        for tensor, size in zip(tensors, sizes, strict=True):
            if tensor.is_cuda and size:
                plain = self._plain(tensor)
                kept.append(plain)  # keeps it alive until it is read
                self._send(self._room.data_ptr() + 8 * at, plain.data_ptr(), size, stream)
            elif size:
                self._room[at : at + size] = tensor.reshape(-1)
            at += size
        if kept:
            driven(driver().cuStreamSynchronize, stream)
        return list(self._room[:total].clone().split(sizes))

    def _plain(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype is torch.int64 and tensor.is_contiguous():
            return tensor
        with torch.cuda.stream(self.stream):
            return tensor.to(torch.int64).contiguous()
