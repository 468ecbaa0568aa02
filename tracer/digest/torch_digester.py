"""The GPU digester's interface in plain torch operations, for AMD and for CUDA without Triton.

The digests are exact and the device is never waited for, but it allocates and takes many launches.
"""

import ctypes
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Literal

import torch

from hicache_dbg.tracer.digest.boxes import Box, boxes_of, extent_of
from hicache_dbg.tracer.digest.torch_ops import digest_rows
from hicache_dbg.tracer.view import View

__all__ = ["TorchDigester"]


class TorchDigester:
    """Digests tiles on any torch device, the CPU included.

    Args:
        device: Where the views are.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)

    def prepare(self, view: View, *, partial: bool = False) -> None:
        """Refuse a view on another device, as the GPU digester does; there is nothing to compile."""
        del partial
        if torch.device(view.device).type != self.device.type:
            raise ValueError(
                f"{view.pool}.{view.component}: tiles are on {view.device}: "
                f"expected a view on {self.device}"
            )

    def digest(
        self,
        view: View,
        layers: Sequence[int],
        pages: torch.Tensor,
        first: int = 0,
        last: int | None = None,
        *,
        out: torch.Tensor,
        unit: int = 1,
        stream: int | None = None,
    ) -> Literal["graph"] | None:
        """Digest as :meth:`hicache_dbg.tracer.digest.gpu.GpuDigester.digest` does."""
        with self._on(stream):
            if self._is_capturing():
                return "graph"
            out.copy_(self._digests(view, layers, pages, (first, last), unit))
        return None

    def watches(self) -> None:
        """Return None: many torch operations cannot be hidden beside a copy as one launch can."""

    def _on(self, stream: int | None) -> Any:
        if stream is None or self.device.type == "cpu":
            return torch.cuda.stream(None)
        return torch.cuda.stream(torch.cuda.ExternalStream(stream, self.device))

    def _is_capturing(self) -> bool:
        return self.device.type != "cpu" and torch.cuda.is_current_stream_capturing()

    def _digests(
        self,
        view: View,
        layers: Sequence[int],
        pages: torch.Tensor,
        slots: tuple[int, int | None],
        unit: int,
    ) -> torch.Tensor:
        boxes = boxes_of(view, *slots)
        inside = (pages >= 0) & (pages < view.pages * unit)
        chosen = torch.where(inside, pages // unit, 0)
        got = torch.empty(len(layers), len(pages), dtype=torch.int64, device=self.device)
        for row, layer in zip(got, layers, strict=True):
            memory = self._memory(view.bases[layer], extent_of(view))
            tiles = [_pieces(memory, view, box)[chosen].flatten(1) for box in boxes]
            row.copy_(digest_rows(torch.cat(tiles, 1)) if len(pages) else row)
        return got * inside

    def _memory(self, address: int, length: int) -> torch.Tensor:
        """Wrap ``length`` bytes at ``address``, in place. The view's owner keeps them alive."""
        if self.device.type == "cpu":
            array: Any = (ctypes.c_ubyte * length).from_address(address)
            return torch.frombuffer(array, dtype=torch.uint8)
        interface = {"shape": (length,), "typestr": "|u1", "data": (address, False), "version": 3}
        return torch.as_tensor(
            SimpleNamespace(__cuda_array_interface__=interface), device=self.device
        )


def _pieces(memory: torch.Tensor, view: View, box: Box) -> torch.Tensor:
    """View the box in every page, as [pages, slots, rows, row_bytes] of the memory."""
    shape = (view.pages, box.slots, box.rows, box.row_bytes)
    strides = (view.page_stride, box.slot_stride, box.row_stride, 1)
    return memory.as_strided(shape, strides, box.offset)
