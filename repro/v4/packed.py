"""DeepSeek-V4's attention entries and compressor states, in and out of their pages.

An entry of 584 B is 448 fp8 values, 64 rotary values in bf16, seven ue8m0 scales (a power of two
for each 64 fp8 values) and a byte of padding. A page holds all values, then all scales. Source:
SGLang ``deepseek_v4_memory_pool.py``.
"""

from dataclasses import dataclass

import torch

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.repro.kvio import FP8_MAX, Slots, fp8_values

__all__ = ["CONTENT", "ENTRY", "ROPE", "EntryStore", "StateStore"]

CONTENT = 448
"""Values of an entry that are kept in fp8."""

ROPE = 64
"""Values of an entry that carry its position, in bf16."""

ENTRY = CONTENT + ROPE
"""Values of an entry."""

_BLOCK = 64  # fp8 values that share a scale
_BLOCKS = CONTENT // _BLOCK
_VALUE_BYTES = CONTENT + 2 * ROPE
_SCALE_BYTES = _BLOCKS + 1
_BIAS = 127  # of an ue8m0 exponent


@dataclass(frozen=True, slots=True, eq=False)
class _Pages:
    """One layer's pages as arrays, each (page, slot, part of an entry)."""

    content: torch.Tensor
    rope: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def of(cls, raw: torch.Tensor, slots: int) -> "_Pages":
        values_end = slots * _VALUE_BYTES
        values = raw[:, :values_end].view(-1, slots, _VALUE_BYTES)
        scales = raw[:, values_end : values_end + slots * _SCALE_BYTES]
        return cls(
            content=values[..., :CONTENT],
            rope=values[..., CONTENT:].view(torch.bfloat16),
            scales=scales.view(-1, slots, _SCALE_BYTES)[..., :_BLOCKS],
        )


class EntryStore:
    """Entries of all layers in the pool; ``layer`` is the model's layer number."""

    def __init__(self, pool: DevicePool) -> None:
        geometry = pool.geometry
        self.slots_per_page = geometry.slots_per_page
        self._pages = {
            layer: _Pages.of(pool.layer("kv", own), self.slots_per_page)
            for own, layer in enumerate(geometry.layer_ids)
        }
        self._values = fp8_values(pool.device)
        exponents = torch.arange(256, dtype=torch.float64, device=pool.device) - _BIAS
        self._scales = torch.exp2(exponents)

    def write(self, layer: int, slots: Slots, entries: torch.Tensor) -> None:
        """Quantize float64 ``entries`` (R, 512) block by block and store them at ``slots`` (R,)."""
        pages, where = self._pages[layer], (slots.pages, slots.offsets)
        blocks = entries[:, :CONTENT].unflatten(-1, (_BLOCKS, _BLOCK))
        largest = blocks.abs().amax(-1)
        exponents = torch.log2(largest / FP8_MAX).ceil().clamp(-_BIAS, _BIAS)
        codes = (blocks * torch.exp2(-exponents).unsqueeze(-1)).float().clamp(-FP8_MAX, FP8_MAX)
        stored = codes.to(torch.float8_e4m3fn).view(torch.uint8)
        pages.content[where] = stored.flatten(-2)
        pages.scales[where] = (exponents + _BIAS).to(torch.uint8)
        pages.rope[where] = entries[:, CONTENT:].to(torch.bfloat16)

    def read(self, layer: int, slots: Slots) -> torch.Tensor:
        """Dequantize the entries at ``slots`` (any shape): float64 with a last axis of 512."""
        pages, where = self._pages[layer], (slots.pages, slots.offsets)
        codes = pages.content[where]
        content = self._values.index_select(0, codes.flatten().int())
        scales = self._scales.index_select(0, pages.scales[where].flatten().int())
        content = content.view(-1, _BLOCK).mul_(scales.unsqueeze(-1)).view(codes.shape)
        return torch.cat((content, pages.rope[where].double()), -1)


class StateStore:
    """Compressor states of a page's latest tokens: token ``t`` is in slot ``t % ring`` of its page.

    Values are rounded to bf16 before they are stored as fp32. That is far coarser than float64
    noise, so a state is the same number however the prompt was split.
    """

    def __init__(self, pool: DevicePool) -> None:
        geometry = pool.geometry
        self.ring = geometry.slots_per_page
        self.page_size = geometry.tokens_per_page
        self._states = {
            layer: pool.layer("state", own).view(pool.pages, self.ring, -1)
            for own, layer in enumerate(geometry.layer_ids)
        }

    @staticmethod
    def rounded(states: torch.Tensor) -> torch.Tensor:
        """Round float64 ``states`` as storing them does."""
        return states.to(torch.bfloat16).double()

    def slots(self, table: torch.Tensor, positions: torch.Tensor) -> Slots:
        """Return the slots of the tokens at ``positions`` (N, T) of sequences with tables (N, P)."""
        return Slots(table.gather(1, positions // self.page_size), positions % self.ring)

    def write(self, layer: int, slots: Slots, states: torch.Tensor) -> None:
        """Store ``states`` (R, width), already rounded, at distinct ``slots`` (R,)."""
        self._states[layer][slots.pages, slots.offsets] = states.float()

    def read(self, layer: int, slots: Slots) -> torch.Tensor:
        """Return the states at ``slots`` (any shape) as float64."""
        return self._states[layer][slots.pages, slots.offsets].double()
