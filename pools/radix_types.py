"""Argument and result types of the prefix tree."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from hicache_dbg.pools.radix_node import Node, PageIds

__all__ = [
    "Backup",
    "Eviction",
    "InsertResult",
    "MatchResult",
    "Policy",
    "RadixError",
    "Tokens",
    "TreeStats",
]

Policy = Literal["lru", "lfu"]
Tokens = npt.NDArray[np.int32] | npt.NDArray[np.int64] | bytes

#: Back up a node that write-back is about to evict and return its host page ids; ``None`` gives
#: the contents up. A callback that locks the node instead (because it starts an asynchronous
#: backup) makes the eviction skip the node.
Backup = Callable[[Node], PageIds | None]


class RadixError(ValueError):
    """A call that contradicts the state of the tree; the tree is unchanged."""


class MatchResult(NamedTuple):
    """The longest cached prefix. The arrays belong to the tree: read them, keep no view."""

    #: The deepest matched node; the root if nothing matched.
    node: Node
    #: Matched pages, device and host together.
    pages: int
    #: Device page ids of the first ``len(device_pages)`` pages.
    device_pages: PageIds
    #: Host page ids of the pages after them, which have no device copy.
    host_pages: PageIds


class InsertResult(NamedTuple):
    """The outcome of ``insert``."""

    #: The node at which the inserted sequence ends.
    node: Node
    #: Number of pages that were new to the tree.
    new_pages: int
    #: Given ids the tree did not take because it has another device copy: the caller frees them.
    duplicate_device_pages: PageIds


class Eviction(NamedTuple):
    """Page ids that the tree has evicted; the caller frees them."""

    node: Node
    device_pages: PageIds
    host_pages: PageIds
    #: Whether the node was removed; if not, it keeps its copy in the other tier.
    removed: bool


@dataclass(frozen=True, slots=True)
class TreeStats:
    """Sizes of the tree, in nodes and pages; evictable pages belong to nodes that nothing holds."""

    nodes: int
    pages: int
    device_pages: int
    host_pages: int
    evictable_device: int
    evictable_host: int
