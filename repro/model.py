"""A small transformer that reads and writes its cache through page tables.

All of it is float64. Its results then do not depend on how a prompt was split into chunks or
batches, so a run through the tiers can be compared with one that kept everything on the device.
"""

from collections.abc import Callable
from typing import Protocol

import torch

from hicache_dbg.repro.rotary import rms
from hicache_dbg.repro.tokens import Special
from hicache_dbg.repro.weights import Frame

__all__ = ["BLOCK", "CHUNK", "Attention", "LayerGate", "LayerStep", "Model", "open_gate"]

CHUNK = 512
"""How many prompt tokens go through the layers at once, at most."""

BLOCK = 128
"""How many queries of a chunk look at the context at once."""

LayerGate = Callable[[int], None]
"""Called with a layer's number before that layer reads what was cached."""

LayerStep = Callable[[int, torch.Tensor], torch.Tensor]
"""Called with a layer's number and the normed hidden states (R, width) of R tokens: caches what the
layer keeps of them and returns what they found in their context, (R, width)."""


class Attention(Protocol):
    """The attention of all layers, over pools of its own kind."""

    def chunk(self, start: int, count: int, table: torch.Tensor) -> LayerStep:
        """Prepare ``count`` tokens of one sequence from position ``start`` on.

        ``table`` is (P,).
        """
        ...

    def batch(self, positions: torch.Tensor, tables: torch.Tensor) -> LayerStep:
        """Prepare one token of each of N sequences; ``positions`` is (N,), ``tables`` (N, P)."""
        ...


def open_gate(_layer: int) -> None:
    """Return at once: everything to be read is already on the device."""


class Model:
    """Weights, and an attention over the pools that hold the model's cache.

    Tokens, positions and tables may be on any device.
    """

    def __init__(self, frame: Frame, attention: Attention) -> None:
        self._frame = frame
        self._attention = attention
        self._device = frame.embedding.device

    def prefill(
        self,
        tokens: torch.Tensor,
        start: int,
        table: torch.Tensor,
        gate: LayerGate = open_gate,
    ) -> int:
        """Compute and cache ``tokens`` at positions ``start ..`` and return the next token.

        Args:
            tokens: (T,) int64, at least one; longer prompts are cut to chunks of ``CHUNK``.
            start: how many tokens of the sequence are cached already.
            table: (P,) int64 page ids of the sequence, enough for ``start + T`` tokens.
            gate: called before each layer first reads the pools.
        """
        tokens, table = tokens.to(self._device), table.to(self._device)
        hidden = self._frame.embedding[:0]
        for first in range(0, len(tokens), CHUNK):
            piece = tokens[first : first + CHUNK]
            step = self._attention.chunk(start + first, len(piece), table)
            hidden = self._layers(piece, step, gate)
            gate = open_gate  # once its gate has opened, a layer stays readable
        return self._next_tokens(hidden[-1:], tokens[-1:])[0]

    def decode(
        self, tokens: torch.Tensor, positions: torch.Tensor, tables: torch.Tensor
    ) -> list[int]:
        """Compute and cache one token of each of N sequences and return their next tokens.

        Args:
            tokens: (N,) int64, the last token of each sequence.
            positions: (N,) int64, where those tokens stand.
            tables: (N, P) int64 page ids, rows padded with any valid page.
        """
        tokens = tokens.to(self._device)
        step = self._attention.batch(positions.to(self._device), tables.to(self._device))
        return self._next_tokens(self._layers(tokens, step, open_gate), tokens)

    def _layers(self, tokens: torch.Tensor, step: LayerStep, gate: LayerGate) -> torch.Tensor:
        """Run tokens (R,) through all layers; return their last hidden states (R, width)."""
        hidden = self._frame.embedding[tokens]
        for number, (into, out) in enumerate(self._frame.feed_forward):
            gate(number)
            hidden = hidden + step(number, rms(hidden))
            hidden = hidden + torch.nn.functional.silu(rms(hidden) @ into) @ out
        return hidden

    def _next_tokens(self, hidden: torch.Tensor, tokens: torch.Tensor) -> list[int]:
        """Pick the likeliest token after each of ``tokens`` (N,), given hidden states (N, width)."""
        logits = rms(hidden) @ self._frame.output + self._frame.bias
        logits[:, Special.END] -= self._frame.empty_penalty * (tokens == Special.ASSISTANT)
        return logits.argmax(-1).tolist()
