"""One node of the prefix tree: an edge of whole pages, and where each of its pages lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

__all__ = ["NO_PAGES", "Node", "PageIds", "cut_ids", "join", "own", "tail_bytes"]

if TYPE_CHECKING:
    from collections.abc import Iterator

PageIds = npt.NDArray[np.int64]

#: "No copy here". One shared, read-only, empty array instead of an optional.
NO_PAGES: PageIds = np.empty(0, dtype=np.int64)
NO_PAGES.flags.writeable = False


class Node:
    """A run of pages that every sequence through this node shares.

    A node is resident as a whole: ``device`` holds one page id for each of its ``pages``, or
    none; ``host`` likewise. Read the attributes freely, change them through the tree only. The
    arrays are read-only and are replaced, never written.

    A handle keeps its meaning when the tree splits the node: the new node takes the front, and
    this object stays the end of the same sequence of tokens.
    """

    __slots__ = (
        "children",
        "device",
        "edge",
        "first",
        "hits",
        "holds",
        "host",
        "locks",
        "pages",
        "parent",
        "pins",
    )

    def __init__(self, parent: Node | None, first: bytes, edge: memoryview, pages: int) -> None:
        #: ``None`` for the root, and for a node the tree has removed.
        self.parent = parent
        #: The first page's tokens: this node's key among its parent's children.
        self.first = first
        #: All tokens of the edge, int32 little-endian.
        self.edge = edge
        self.pages = pages
        self.children: dict[bytes, Node] = {}
        self.device = NO_PAGES
        self.host = NO_PAGES
        #: How many matches went through this node.
        self.hits = 0
        #: Locks and pins taken on exactly this node.
        self.locks = 0
        self.pins = 0
        #: Locks and pins of this node and of everything below it: above zero, nothing is evicted.
        self.holds = 0

    @property
    def on_device(self) -> bool:
        """Whether every page of the node has a device copy (none has, otherwise)."""
        return self.device.size > 0

    @property
    def on_host(self) -> bool:
        """Whether every page of the node has a host copy (none has, otherwise)."""
        return self.host.size > 0

    def path(self) -> Iterator[Node]:
        """Yield this node and its ancestors, deepest first, without the root."""
        node: Node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def below(self) -> Iterator[Node]:
        """Yield every node below this one, parents before their children."""
        stack = list(self.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def __repr__(self) -> str:
        return (
            f"Node(pages={self.pages}, device={self.on_device}, host={self.on_host}, "
            f"hits={self.hits}, holds={self.holds}, children={len(self.children)})"
        )


def own(pages: PageIds) -> PageIds:
    """Return a read-only copy, so that neither the caller's buffer nor its size is kept alive."""
    copy = pages.copy()
    copy.flags.writeable = False
    return copy


def cut_ids(pages: PageIds, at: int) -> tuple[PageIds, PageIds]:
    """Return both sides of ``at``: the front copied, the rest a view unless it retains too much.

    A view keeps the whole array below it alive, so the rest is copied once it is less than half
    of that: at most twice the needed bytes stay, and a page is copied O(1) times over all cuts.
    """
    if not pages.size:
        return NO_PAGES, NO_PAGES
    rest = pages[at:]
    owner = rest.base
    if owner is not None and 2 * rest.nbytes < owner.nbytes:
        rest = own(rest)
    return own(pages[:at]), rest


def tail_bytes(edge: memoryview, start: int) -> memoryview:
    """Return ``edge[start:]``, a view under the same rule as in :func:`cut_ids`."""
    tail = edge[start:]
    return memoryview(bytes(tail)) if 2 * len(tail) < memoryview(tail.obj).nbytes else tail


def join(parts: list[PageIds]) -> PageIds:
    """Concatenate ids collected from the deepest node up."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts[::-1]) if parts else NO_PAGES
