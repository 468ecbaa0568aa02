"""The sparse attention of the repro model: an indexer picks tokens, attention reads only those.

Formulas follow DeepSeek-V3.2's lightning indexer (a ReLU score per head, weighted by a gate of
the query, top-k over the sum) and multi-head latent attention. All of it is float64: results then
do not depend on how a prompt was cut into chunks or batches, which is what lets a run through
the tiers be compared with one that kept everything on the device.
"""

import math
from dataclasses import dataclass

import torch

from hicache_dbg.repro.weights import LayerWeights, ModelSpec

__all__ = [
    "Expanded",
    "RaggedPages",
    "Rotation",
    "attend_chosen",
    "index_scores",
    "index_scores_by_page",
]

#: Later tokens win among equal scores (ReLU makes exact zeros). Far above float64 noise, far below
#: a real difference, so the choice never hangs on the order in which a kernel visits the tokens.
_TIE_BREAK = 1e-9

#: Below every score of a token, above the -inf of one that comes later.
_LEAST = torch.finfo(torch.float64).min


@dataclass(frozen=True, slots=True, eq=False)
class RaggedPages:
    """The pages of sequences of different lengths, one after the other: M in all.

    ``owner`` (M,) is the sequence a page belongs to, ``place`` (M,) the how-manieth it is there.
    """

    owner: torch.Tensor
    place: torch.Tensor

    @classmethod
    def of(cls, counts: torch.Tensor) -> "RaggedPages":
        """Lay out ``counts`` (N,) pages of N sequences."""
        owner = torch.repeat_interleave(torch.arange(len(counts)), counts)
        begins = torch.cumsum(counts, 0) - counts
        return cls(owner, torch.arange(len(owner)) - begins[owner])


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """Rotary position embedding of R tokens: ``cos`` and ``sin`` are (R, half the width)."""

    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def of(cls, positions: torch.Tensor, width: int) -> "Rotation":
        """Angles for ``positions`` (R,) and the last ``width`` values of what is turned."""
        half = width // 2
        rates = torch.pow(10000.0, -torch.arange(half, dtype=torch.float64) / half)
        angles = positions.unsqueeze(-1) * rates
        return cls(angles.cos(), angles.sin())

    def turn(self, values: torch.Tensor) -> torch.Tensor:
        """Turn the last values of each token; ``values`` is (R, d) or (R, heads, d)."""
        cos, sin = self.cos, self.sin
        if values.dim() > cos.dim():
            cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        half = cos.shape[-1]
        first, second = values[..., -2 * half : -half], values[..., -half:]
        plain = values[..., : values.shape[-1] - 2 * half]
        return torch.cat((plain, first * cos - second * sin, first * sin + second * cos), -1)


def index_scores(
    queries: torch.Tensor, gates: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Score the cached tokens of one sequence for many queries: (T, C).

    Args:
        queries: (T, heads, dim).
        gates: (T, heads), the weight of each head.
        keys: (C, dim), index-K in order of position.
        positions: (T,), the queries' own positions.

    Returns:
        The scores, -inf where the token comes after the query.
    """
    per_head = (queries.flatten(0, 1) @ keys.T).relu_().view(*queries.shape[:2], -1)
    scores = (gates.unsqueeze(1) @ per_head).squeeze(1) / math.sqrt(keys.shape[-1])
    return _causal(scores, positions)


def index_scores_by_page(
    queries: torch.Tensor,
    gates: torch.Tensor,
    keys: torch.Tensor,
    positions: torch.Tensor,
    pages: RaggedPages,
) -> torch.Tensor:
    """Score the cached tokens of many sequences for one query each: (N, longest).

    Work goes by the pages there are, not by the longest sequence.

    Args:
        queries: (N, heads, dim).
        gates: (N, heads).
        keys: (M, page_size, dim) of the pages in ``pages``.
        positions: (N,).
        pages: whose each page is, and where it stands.

    Returns:
        The scores, -inf beyond each sequence's end.
    """
    per_head = (queries[pages.owner] @ keys.transpose(1, 2)).relu_()
    found = (gates[pages.owner].unsqueeze(1) @ per_head).squeeze(1) / math.sqrt(keys.shape[-1])
    longest = int(pages.place.max()) + 1
    scores = found.new_full((len(queries), longest, keys.shape[1]), -torch.inf)
    scores[pages.owner, pages.place] = found
    return _causal(scores.flatten(1), positions)


def _causal(scores: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    columns = torch.arange(scores.shape[-1])
    scores += columns * _TIE_BREAK
    return scores.masked_fill_(columns > positions.unsqueeze(-1), -torch.inf)


@dataclass(frozen=True, slots=True, eq=False)
class Expanded:
    """The latents of one sequence out of the latent space, for many queries.

    ``keys`` (heads, head_dim + rope_dim, C), ``values`` (heads, C, head_dim).
    """

    keys: torch.Tensor
    values: torch.Tensor

    @classmethod
    def of(cls, spec: ModelSpec, layer: LayerWeights, latents: torch.Tensor) -> "Expanded":
        """Expand ``latents`` (C, kv_lora_rank + rope_dim)."""
        content, roped = latents[:, : spec.kv_lora_rank], latents[:, spec.kv_lora_rank :]
        shape = (len(latents), spec.heads, spec.head_dim)
        keys = (content @ layer.up_key).view(shape).permute(1, 2, 0)
        values = (content @ layer.up_value).view(shape).transpose(0, 1)
        shared = roped.T.expand(spec.heads, -1, -1)
        return cls(torch.cat((keys, shared), 1), values.contiguous())

    def attend(self, queries: torch.Tensor, scores: torch.Tensor, top_k: int) -> torch.Tensor:
        """Attend to the ``top_k`` best scored tokens; the others are masked out.

        Dense work for a sparse result, because most tokens are chosen by one query or another.
        ``queries`` is (T, heads, head_dim + rope_dim); ``scores`` (T, C) may cover fewer tokens
        than were expanded. Returns (T, heads * head_dim).
        """
        seen = scores.shape[-1]
        kept = torch.topk(scores, min(top_k, seen), sorted=False).values
        # A query with fewer tokens before it than top_k keeps all of those.
        least = kept.amin(-1, keepdim=True).clamp_(min=_LEAST)
        logits = queries.transpose(0, 1) @ self.keys[..., :seen]
        weights = logits.masked_fill_(~(scores >= least), -torch.inf).softmax(-1)
        return (weights @ self.values[:, :seen]).transpose(0, 1).flatten(1)


def attend_chosen(
    spec: ModelSpec,
    layer: LayerWeights,
    queries: torch.Tensor,
    latents: torch.Tensor,
    valid: torch.Tensor,
) -> torch.Tensor:
    """Attend to tokens that were already gathered, one query a sequence (decoding).

    The query goes into the latent space instead of the latents out of it (the absorbed form).

    Args:
        spec: of the model.
        layer: whose weights to use.
        queries: (N, heads, head_dim + rope_dim).
        latents: (N, K, kv_lora_rank + rope_dim).
        valid: (N, K), False for padding where a context has fewer than K tokens.

    Returns:
        (N, heads * head_dim).
    """
    shape = (spec.kv_lora_rank, spec.heads, spec.head_dim)
    to_latent = layer.up_key.view(shape).permute(1, 2, 0)  # (heads, head_dim, rank)
    from_latent = layer.up_value.view(shape).transpose(0, 1)  # (heads, rank, head_dim)
    absorbed = (queries[..., : spec.head_dim].transpose(0, 1) @ to_latent).transpose(0, 1)
    logits = torch.cat((absorbed, queries[..., spec.head_dim :]), -1) @ latents.transpose(1, 2)
    weights = logits.masked_fill_(~valid.unsqueeze(1), -torch.inf).softmax(-1)
    context = weights @ latents[..., : spec.kv_lora_rank]
    return (context.transpose(0, 1) @ from_latent).transpose(0, 1).flatten(1)
