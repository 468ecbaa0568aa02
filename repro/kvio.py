"""The model's access to the device pools: tokens in and out of pages, in float64.

Everything stored is rounded to what the pool holds (bf16, or fp8 keys with a scale) and read back
from the pool before it is used, even within one forward pass. A cached value and one just computed
are therefore the same number.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from hicache_dbg.pools.device import DevicePool

__all__ = ["FP8_MAX", "IndexStore", "RowStore", "Slots", "fp8_values", "index_store"]

FP8_MAX = 448.0
"""The largest finite value of float8_e4m3fn."""

_SCALE_BYTES = 4


def fp8_values(device: torch.device) -> torch.Tensor:
    """Return every float8_e4m3fn value as float64, indexed by its code.

    On a CPU a table lookup is much faster than the element-wise conversion.
    """
    codes = torch.arange(256, dtype=torch.uint8)
    return codes.view(torch.float8_e4m3fn).double().to(device)


@dataclass(frozen=True, slots=True)
class Slots:
    """Where tokens are stored: ``pages`` and ``offsets``, int64 tensors of one shape."""

    pages: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def of(cls, table: torch.Tensor, positions: torch.Tensor, page_size: int) -> "Slots":
        """Look ``positions`` (N, T) up in a page table (N, P)."""
        return cls(table.gather(1, positions // page_size), positions % page_size)

    def flat(self) -> "Slots":
        """Return the same slots along one axis."""
        return Slots(self.pages.flatten(), self.offsets.flatten())

    def after(self, count: int) -> "Slots":
        """Return the slots without the first ``count``, along the first axis."""
        return Slots(self.pages[count:], self.offsets[count:])


class IndexStore(Protocol):
    """Index-K of every layer in one storage format."""

    def write(self, layer: int, slots: Slots, keys: torch.Tensor) -> None:
        """Store float64 ``keys`` (R, dim) at ``slots`` (R,)."""
        ...

    def read(self, layer: int, pages: torch.Tensor) -> torch.Tensor:
        """Return the float64 keys (M, page_size, dim) of ``pages`` (M,)."""
        ...


class Bf16IndexStore:
    """Index-K as bf16: a page is ``page_size`` rows of ``dim`` values."""

    def __init__(self, pool: DevicePool) -> None:
        slots = pool.geometry.slots_per_page
        self._pages = tuple(
            pool.layer("index_k", layer).view(pool.pages, slots, -1)
            for layer in range(pool.geometry.layers)
        )

    def write(self, layer: int, slots: Slots, keys: torch.Tensor) -> None:
        """Round to bf16 and store."""
        self._pages[layer][slots.pages, slots.offsets] = keys.to(torch.bfloat16)

    def read(self, layer: int, pages: torch.Tensor) -> torch.Tensor:
        """Widen whole pages to float64."""
        return self._pages[layer][pages].double()


class Fp8IndexStore:
    """Index-K as fp8: a page is its keys (e4m3, a byte each) and then a float32 scale per token."""

    def __init__(self, pool: DevicePool) -> None:
        slots = pool.geometry.slots_per_page
        dim = pool.geometry.component("index_k").slot_bytes - _SCALE_BYTES
        keys, end = slots * dim, slots * (dim + _SCALE_BYTES)
        self._values = fp8_values(pool.device)
        raw = tuple(pool.layer("index_k", layer) for layer in range(pool.geometry.layers))
        self._keys = tuple(page[:, :keys].view(-1, slots, dim) for page in raw)
        self._scales = tuple(page[:, keys:end].view(torch.float32) for page in raw)

    def write(self, layer: int, slots: Slots, keys: torch.Tensor) -> None:
        """Quantize each token with its own scale, largest magnitude / 448, and store both."""
        largest = keys.abs().amax(-1)
        scales = torch.where(largest > 0, largest / FP8_MAX, 1.0).float()
        codes = (keys / scales.unsqueeze(-1)).float().clamp(-FP8_MAX, FP8_MAX)
        self._keys[layer][slots.pages, slots.offsets] = codes.to(torch.float8_e4m3fn).view(
            torch.uint8
        )
        self._scales[layer][slots.pages, slots.offsets] = scales

    def read(self, layer: int, pages: torch.Tensor) -> torch.Tensor:
        """Dequantize whole pages."""
        codes = self._keys[layer][pages]
        values = self._values.index_select(0, codes.flatten().int()).view(codes.shape)
        return values.mul_(self._scales[layer][pages].unsqueeze(-1))


class RowStore:
    """One component of a row-indexed pool: a bf16 row a token, (width,) or (heads, width)."""

    def __init__(self, pool: DevicePool, component: str) -> None:
        self.page_size = pool.geometry.slots_per_page
        self._rows = tuple(
            pool.layer(component, layer).flatten(0, 1) for layer in range(pool.geometry.layers)
        )

    def _row_ids(self, slots: Slots) -> torch.Tensor:
        return slots.pages * self.page_size + slots.offsets

    def write(self, layer: int, slots: Slots, values: torch.Tensor) -> None:
        """Round float64 ``values``, a row for each of ``slots`` (R,), to bf16 and store them."""
        self._rows[layer][self._row_ids(slots)] = values.to(torch.bfloat16)

    def read(self, layer: int, slots: Slots) -> torch.Tensor:
        """Return the rows at ``slots`` (any shape) as float64, with the row's own axes last."""
        return self._rows[layer][self._row_ids(slots)].double()

    def read_by_head(self, layer: int, slots: Slots) -> torch.Tensor:
        """Return the same with heads before tokens: (..., heads, C, width) of ``slots`` (..., C)."""
        rows = self._rows[layer][self._row_ids(slots)]
        return rows.transpose(-3, -2).contiguous().double()  # transposed while still narrow


def index_store(pool: DevicePool) -> IndexStore:
    """Choose the codec by what the pool really stores: bf16 values, or packed fp8 as uint8."""
    stored = pool.layer("index_k", 0).dtype
    if stored == torch.bfloat16:
        return Bf16IndexStore(pool)
    if stored == torch.uint8:
        return Fp8IndexStore(pool)
    raise TypeError(
        f"pool {pool.geometry.name} stores index-K as {stored}; expected bfloat16, or uint8 for fp8"
    )
