"""Validate the arguments of the prefix tree and convert them to the form it compares."""

import numpy as np

from hicache_dbg.pools.radix_node import PageIds
from hicache_dbg.pools.radix_types import RadixError, Tokens

__all__ = ["TOKEN_BYTES", "checked_ids", "common_pages", "encode"]

#: A token is an int32, little-endian.
TOKEN_BYTES = 4


def encode(tokens: Tokens) -> bytes:
    """Return ``tokens`` as the bytes the tree compares; encode once to reuse them in several calls.

    Raises:
        RadixError: ``tokens`` is not a 1-D integer array, or a token lies outside int32 (two tokens
            that agree in their low 32 bits would become one key).
    """
    if isinstance(tokens, bytes):
        if len(tokens) % TOKEN_BYTES:
            raise RadixError(
                f"encoded tokens are {len(tokens)} bytes long, expected a multiple of 4"
            )
        return tokens
    if tokens.ndim != 1 or tokens.dtype.kind != "i" or tokens.dtype.itemsize not in (4, 8):
        raise RadixError(
            f"tokens are a {tokens.ndim}-d array of {tokens.dtype}, expected 1-d int32 or int64"
        )
    if tokens.dtype.itemsize == 8 and tokens.size:
        # One pass instead of two: if the OR of all tokens is a non-negative int32, each token is.
        union = int(np.bitwise_or.reduce(tokens))
        if not 0 <= union < 2**31 and not -(2**31) <= tokens.min() <= tokens.max() < 2**31:
            raise RadixError(
                f"tokens run from {tokens.min()} to {tokens.max()}, expected int32 values"
            )
    return tokens.astype("<i4", copy=False).tobytes()


def common_pages(key: bytes, offset: int, end: int, edge: memoryview, step: int) -> int:
    """Return how many pages of ``step`` bytes ``edge`` shares with ``key[offset:end]``.

    The caller knows that the first page is shared. The search compares runs of doubling length,
    then bisects the first that differs, so its cost depends on the shared length, not on the
    edge's.
    """

    def same(start: int, stop: int) -> bool:
        return key.startswith(edge[start * step : stop * step], offset + start * step)

    limit = min(len(edge), end - offset) // step
    low, high = 1, min(2, limit)
    while low < limit and same(low, high):
        low, high = high, min(3 * high - 2 * low, limit)
    while high - low > 1:
        middle = (low + high) // 2
        if same(low, middle):
            low = middle
        else:
            high = middle
    return low


def checked_ids(ids: PageIds, pages: int, tier: str) -> PageIds:
    """Return ``ids`` after checking that they are ``pages`` page ids (1-D int64, none negative)."""
    if ids.ndim != 1 or ids.dtype != np.int64:
        raise RadixError(
            f"{tier} pages are a {ids.ndim}-d array of {ids.dtype}, expected 1-d int64"
        )
    if ids.size != pages:
        raise RadixError(f"{ids.size} {tier} pages for {pages} whole pages of tokens")
    if pages and ids.min() < 0:
        raise RadixError(f"{tier} page id {ids.min()}, expected none below zero")
    return ids
