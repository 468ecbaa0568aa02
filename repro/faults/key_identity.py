"""Keys that do not say everything, or say it of something else."""

import numpy as np

from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.radix import RadixTree
from hicache_dbg.pools.radix_types import InsertResult, MatchResult, Tokens
from hicache_dbg.repro.faults.base import Fault, Target
from hicache_dbg.repro.faults.places import put
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULTS"]

NAMESPACE = 1000


def _namespace_left_out(target: Target) -> None:
    """What tells two requests apart (here the thousands) is no part of the key."""
    tree = target.controller.tree

    def key(tokens: Tokens) -> Tokens:
        return np.asarray(tokens) % NAMESPACE

    def match(tokens: Tokens) -> MatchResult:
        return RadixTree.match(tree, key(tokens))

    def insert(tokens: Tokens, device_pages: Ids) -> InsertResult:
        return RadixTree.insert(tree, key(tokens), device_pages)

    put(tree, "match", match)
    put(tree, "insert", insert)


def _key_made_before_the_edit(target: Target) -> None:
    """The first request's history is edited after its key was made, and its pages go under the old key."""
    tree = target.controller.tree
    first = True

    def insert(tokens: Tokens, device_pages: Ids) -> InsertResult:
        nonlocal first
        stale = np.asarray(tokens) + (NAMESPACE if first else 0)
        first = False
        return RadixTree.insert(tree, stale, device_pages)

    put(tree, "insert", insert)


FAULTS = (
    Fault(
        name="namespace_left_out_of_the_key",
        cls=FaultClass.KEY_IDENTITY,
        summary="two namespaces with equal tokens share a key, and so each other's pages",
        install=_namespace_left_out,
    ),
    Fault(
        name="key_made_before_the_edit",
        cls=FaultClass.KEY_IDENTITY,
        summary="a history is edited after its key was made; the pages are cached under the old key",
        install=_key_made_before_the_edit,
    ),
)
