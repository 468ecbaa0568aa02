"""Seeded weights of the repro models: no file to fetch, the same numbers on every machine."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from hicache_dbg.repro.tokens import FIRST_CONTENT, VOCABULARY, Special

__all__ = ["Frame", "Matrix", "ModelSpec", "seeded_weights"]

_Layer = TypeVar("_Layer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The shape that all models share, and the scales that make their output worth comparing.

    ``sharpness`` is the standard deviation of attention logits: well above 1, a reply depends on
    single tokens. ``end_bias`` and ``tool_bias`` are added to the logits of the two control tokens
    and set how often a reply ends by itself or calls a tool. ``empty_penalty`` is subtracted from
    the end token's logit right after the token that opens a reply, which makes empty replies rare.
    """

    layers: int = 3
    width: int = 128
    ffn: int = 128
    sharpness: float = 4.0
    end_bias: float = 0.5
    tool_bias: float = 0.7
    empty_penalty: float = 2.0
    seed: int = 0


class Matrix(Protocol):
    """Draws the next matrix of a model."""

    def __call__(self, rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        """Draw a float64 matrix of shape (in, out).

        ``gain`` is the standard deviation of x @ matrix.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """All of a model except its attention, float64.

    ``embedding`` is (vocabulary, width), ``feed_forward`` a pair (in, out) per layer, ``output``
    (width, vocabulary), ``bias`` (vocabulary,).
    """

    embedding: torch.Tensor
    feed_forward: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    output: torch.Tensor
    bias: torch.Tensor
    empty_penalty: float


def seeded_weights(
    spec: ModelSpec, device: torch.device, layer: Callable[[Matrix], _Layer]
) -> tuple[Frame, tuple[_Layer, ...]]:
    """Draw a model from its seed; ``layer`` draws the attention of one layer."""
    generator = torch.Generator().manual_seed(spec.seed)

    def normal(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, dtype=torch.float64, generator=generator).to(device)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        return normal(rows, columns) * (gain / math.sqrt(rows))

    embedding = normal(VOCABULARY, spec.width)
    output = normal(spec.width, VOCABULARY) / math.sqrt(spec.width)
    layers = []
    feed_forward = []
    for _ in range(spec.layers):
        layers.append(layer(matrix))
        feed_forward.append((matrix(spec.width, spec.ffn), matrix(spec.ffn, spec.width)))
    bias = _output_bias(spec).to(device)
    frame = Frame(embedding, tuple(feed_forward), output, bias, spec.empty_penalty)
    return frame, tuple(layers)


def _output_bias(spec: ModelSpec) -> torch.Tensor:
    """Return the output bias: control tokens are never emitted, except the two that end a reply."""
    bias = torch.zeros(VOCABULARY, dtype=torch.float64)
    bias[:FIRST_CONTENT] = -torch.inf
    bias[Special.END] = spec.end_bias
    bias[Special.TOOL_CALL] = spec.tool_bias
    return bias
