"""Keys that do not say everything, or say it of something else."""

from collections.abc import Callable, Sequence

import numpy as np

from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.radix import RadixTree
from hicache_dbg.pools.radix_types import InsertResult, MatchResult, Tokens
from hicache_dbg.repro.faults.base import Fault, Target
from hicache_dbg.repro.faults.places import put
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULTS"]

NAMESPACE = 1000
SALT = 1_000_003


def _contents_left_out(target: Target) -> None:
    """The key says how many tokens there are, and not which: namespace, salt and words are lost."""
    tree = target.controller.tree

    def key(tokens: Tokens) -> Tokens:
        return np.zeros_like(np.asarray(tokens))

    def match(tokens: Tokens) -> MatchResult:
        return RadixTree.match(tree, key(tokens))

    def insert(tokens: Tokens, device_pages: Ids) -> InsertResult:
        return RadixTree.insert(tree, key(tokens), device_pages)

    put(tree, "match", match)
    put(tree, "insert", insert)


def _key_made_before_the_edit(target: Target) -> None:
    """The first request's history is edited after its key was made, and its pages go under the old key."""
    tree = target.controller.tree
    asked: list[Ids] = []
    first = True

    def match(tokens: Tokens) -> MatchResult:
        asked.append(np.array(tokens, np.int64))
        return RadixTree.match(tree, tokens)

    def insert(tokens: Tokens, device_pages: Ids) -> InsertResult:
        nonlocal first
        key = np.asarray(tokens)
        if first:
            first = False
            key = _before_the_edit(key, asked)
        return RadixTree.insert(tree, key, device_pages)

    put(tree, "match", match)
    put(tree, "insert", insert)


def _before_the_edit(tokens: Ids, asked: Sequence[Ids]) -> Ids:
    """A history that somebody else will ask for: one that was asked for already, or the next."""
    for other in asked:
        head = other[: tokens.size]
        if not np.array_equal(head, tokens[: head.size]):
            return np.concatenate([head, tokens[head.size :]])
    return tokens + NAMESPACE


def _written_under(key: Callable[[Ids], Ids]) -> Callable[[Target], None]:
    """The writer makes keys of its own, which no reader asks for."""

    def install(target: Target) -> None:
        tree = target.controller.tree

        def insert(tokens: Tokens, device_pages: Ids) -> InsertResult:
            return RadixTree.insert(tree, key(np.array(tokens, np.int64)), device_pages)

        put(tree, "insert", insert)

    return install


def _salted(tokens: Ids) -> Ids:
    """A hash seed that each process draws anew."""
    return tokens + SALT


def _pairs(tokens: Ids) -> Ids:
    """Each token together with the next, as a draft model's cache has them."""
    return (tokens * 31 + np.roll(tokens, -1)) % SALT


FAULTS = (
    Fault(
        name="contents_left_out_of_the_key",
        cls=FaultClass.KEY_IDENTITY,
        summary="requests of one length share a key, whatever their tokens, and so each other's pages",
        install=_contents_left_out,
    ),
    Fault(
        name="key_made_before_the_edit",
        cls=FaultClass.KEY_IDENTITY,
        summary="a history is edited after its key was made; the pages are cached under the old key",
        install=_key_made_before_the_edit,
    ),
    Fault(
        name="key_salted_by_the_process",
        cls=FaultClass.KEY_IDENTITY,
        summary="the writer's keys have a seed of its own process, and no reader ever hits",
        install=_written_under(_salted),
    ),
    Fault(
        name="key_of_pairs_looked_up_by_tokens",
        cls=FaultClass.KEY_IDENTITY,
        summary="the writer hashes pairs of tokens, the reader single tokens, and never hits",
        install=_written_under(_pairs),
    ),
)
