"""What the prefix tree takes and hands out."""

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

#: Backs up a node that write-back is about to evict and returns its host page ids; ``None``
#: gives the contents up. A callback that locks the node instead (an asynchronous backup is under
#: way) makes the eviction pass the node over.
Backup = Callable[[Node], PageIds | None]


class RadixError(ValueError):
    """A call that contradicts the state of the tree, which is left as it was."""


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
    """What became of the pages given to ``insert``."""

    #: The node at which the inserted sequence ends.
    node: Node
    #: Pages the tree did not know at all before.
    new_pages: int
    #: Given ids the tree did not take, because it has another device copy: the caller frees them.
    duplicate_device_pages: PageIds


class Eviction(NamedTuple):
    """Page ids that the tree has let go of; the caller frees them."""

    node: Node
    device_pages: PageIds
    host_pages: PageIds
    #: Whether the node is gone; if not, it keeps its copy at the other end.
    removed: bool


@dataclass(frozen=True, slots=True)
class TreeStats:
    """Sizes of the tree. "Evictable" pages belong to nodes that nothing holds."""

    nodes: int
    pages: int
    device_pages: int
    host_pages: int
    evictable_device: int
    evictable_host: int
