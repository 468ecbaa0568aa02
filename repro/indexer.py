"""The scores by which sparse attention selects what to read.

The formula is that of DeepSeek-V3.2's lightning indexer: a ReLU score per head, weighted by a gate
of the query and summed over the heads.
"""

import math
from dataclasses import dataclass

import torch

__all__ = ["RaggedPages", "chosen", "index_scores", "index_scores_by_page"]

#: Among equal scores (ReLU makes exact zeros) the later key wins. Far above float64 noise and far below
#: a real difference, so the choice never depends on the order in which a kernel visits the keys.
_TIE_BREAK = 1e-9

#: Below every key's score, above the -inf of masked keys.
_LEAST = torch.finfo(torch.float64).min


@dataclass(frozen=True, slots=True, eq=False)
class RaggedPages:
    """The pages of sequences of different lengths, concatenated: M in all.

    ``owner`` (M,) is the sequence a page belongs to, ``place`` (M,) its position in that sequence.
    """

    owner: torch.Tensor
    place: torch.Tensor

    @classmethod
    def of(cls, counts: torch.Tensor) -> "RaggedPages":
        """Lay out ``counts`` (N,) pages of N sequences."""
        sequences = torch.arange(len(counts), device=counts.device)
        owner = torch.repeat_interleave(sequences, counts)
        begins = torch.cumsum(counts, 0) - counts
        return cls(owner, torch.arange(len(owner), device=counts.device) - begins[owner])


def index_scores(
    queries: torch.Tensor, gates: torch.Tensor, keys: torch.Tensor, last: torch.Tensor
) -> torch.Tensor:
    """Score the cached keys of one sequence for many queries: (T, C).

    Args:
        queries: (T, heads, dim).
        gates: (T, heads), the weight of each head.
        keys: (C, dim), index-K in order of position.
        last: (T,), the last key that each query may see; -1 for none.

    Returns:
        The scores, -inf where the key comes after the query.
    """
    per_head = (queries.flatten(0, 1) @ keys.T).relu_().view(*queries.shape[:2], -1)
    scores = (gates.unsqueeze(1) @ per_head).squeeze(1) / math.sqrt(keys.shape[-1])
    return _causal(scores, last)


def index_scores_by_page(
    queries: torch.Tensor,
    gates: torch.Tensor,
    keys: torch.Tensor,
    last: torch.Tensor,
    pages: RaggedPages,
) -> torch.Tensor:
    """Score the cached keys of many sequences for one query each: (N, longest).

    The work is proportional to the number of pages, not to the longest sequence.

    Args:
        queries: (N, heads, dim).
        gates: (N, heads).
        keys: (M, page_size, dim) of the pages in ``pages``.
        last: (N,), the last key that each query may see; -1 for none.
        pages: owner and position of each page.

    Returns:
        The scores, -inf beyond what each query may see.
    """
    per_head = (queries[pages.owner] @ keys.transpose(1, 2)).relu_()
    found = (gates[pages.owner].unsqueeze(1) @ per_head).squeeze(1) / math.sqrt(keys.shape[-1])
    longest = int(pages.place.max()) + 1
    scores = found.new_full((len(queries), longest, keys.shape[1]), -torch.inf)
    scores[pages.owner, pages.place] = found
    return _causal(scores.flatten(1), last)


def chosen(scores: torch.Tensor, top_k: int) -> torch.Tensor:
    """Return which keys are among the ``top_k`` best of each query, as a mask (T, C).

    A query that may see fewer than ``top_k`` keys keeps all of them.
    """
    kept = torch.topk(scores, min(top_k, scores.shape[-1]), sorted=False).values
    return scores >= kept.amin(-1, keepdim=True).clamp_(min=_LEAST)


def _causal(scores: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    columns = torch.arange(scores.shape[-1], device=scores.device)
    scores += columns * _TIE_BREAK
    return scores.masked_fill_(columns > last.unsqueeze(-1), -torch.inf)
