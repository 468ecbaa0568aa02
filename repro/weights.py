"""Seeded weights of the repro model: no file to fetch, the same numbers on every machine."""

import math
from dataclasses import dataclass

import torch

from hicache_dbg.repro.tokens import FIRST_CONTENT, VOCABULARY, Special

__all__ = ["LayerWeights", "ModelSpec", "Weights", "seeded_weights"]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The shape of the model, and the few scales that make its output worth comparing.

    ``kv_lora_rank + rope_dim`` values of latent KV and ``index_dim`` values of index-K are cached
    per token and layer. ``top_k`` tokens are attended to. ``sharpness`` is the standard deviation
    of attention logits: well above 1 a reply hangs on single tokens and so on which the indexer
    keeps. ``end_bias`` and ``tool_bias`` are added to the logits of the two control tokens and set
    how often a reply ends by itself or calls a tool. ``empty_penalty`` is taken off the end
    token's logit right after the token that opens a reply: an empty one is rare.
    """

    layers: int = 3
    width: int = 128
    heads: int = 2
    head_dim: int = 16
    kv_lora_rank: int = 512
    rope_dim: int = 64
    index_heads: int = 2
    index_dim: int = 128
    top_k: int = 48
    ffn: int = 128
    sharpness: float = 4.0
    end_bias: float = 0.5
    tool_bias: float = 0.7
    empty_penalty: float = 2.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's matrices, float64, each of shape (in, out)."""

    query: torch.Tensor
    latent: torch.Tensor
    up_key: torch.Tensor
    up_value: torch.Tensor
    out: torch.Tensor
    index_query: torch.Tensor
    index_key: torch.Tensor
    index_gate: torch.Tensor
    ffn_in: torch.Tensor
    ffn_out: torch.Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    """All of the model: embedding (vocabulary, width), layers, output (width, vocabulary), bias."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    output: torch.Tensor
    bias: torch.Tensor


def _layer(spec: ModelSpec, generator: torch.Generator) -> LayerWeights:
    def matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        scale = gain / math.sqrt(rows)
        return torch.randn(rows, columns, dtype=torch.float64, generator=generator) * scale

    heads = spec.heads * spec.head_dim
    return LayerWeights(
        query=matrix(spec.width, spec.heads * (spec.head_dim + spec.rope_dim)),
        latent=matrix(spec.width, spec.kv_lora_rank + spec.rope_dim),
        up_key=matrix(spec.kv_lora_rank, heads),
        up_value=matrix(spec.kv_lora_rank, heads),
        out=matrix(heads, spec.width, gain=2.0),
        index_query=matrix(spec.width, spec.index_heads * spec.index_dim),
        index_key=matrix(spec.width, spec.index_dim),
        index_gate=matrix(spec.width, spec.index_heads),
        ffn_in=matrix(spec.width, spec.ffn),
        ffn_out=matrix(spec.ffn, spec.width),
    )


def _output_bias(spec: ModelSpec) -> torch.Tensor:
    """Control tokens are never said, but for the two that a reply can end with."""
    bias = torch.zeros(VOCABULARY, dtype=torch.float64)
    bias[:FIRST_CONTENT] = -torch.inf
    bias[Special.END] = spec.end_bias
    bias[Special.TOOL_CALL] = spec.tool_bias
    return bias


def seeded_weights(spec: ModelSpec) -> Weights:
    """Draw the weights of ``spec`` from its seed."""
    generator = torch.Generator().manual_seed(spec.seed)
    embedding = torch.randn(VOCABULARY, spec.width, dtype=torch.float64, generator=generator)
    output = torch.randn(spec.width, VOCABULARY, dtype=torch.float64, generator=generator)
    return Weights(
        embedding=embedding,
        layers=tuple(_layer(spec, generator) for _ in range(spec.layers)),
        output=output / math.sqrt(spec.width),
        bias=_output_bias(spec),
    )
