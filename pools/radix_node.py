"""One node of the prefix tree: an edge of whole pages, and where each page is cached."""

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
    """A run of pages shared by every sequence through this node.

    A node is resident as a whole: ``device`` holds one page id for each of its ``pages``, or none;
    ``host`` likewise. Read the attributes freely, but change them through the tree only. The arrays
    are read-only and are replaced, never written.

    A reference to a node stays valid when the tree splits it: the new node takes the front, and
    this object remains the end of the same sequence of tokens.
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
        #: Locks and pins of this node and everything below it; the node is evictable only at zero.
        self.holds = 0

    @property
    def on_device(self) -> bool:
        """Whether the node's pages have device copies: all of them or none."""
        return self.device.size > 0

    @property
    def on_host(self) -> bool:
        """Whether the node's pages have host copies: all of them or none."""
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
    """Return a read-only copy, so that the caller's (possibly larger) buffer is not kept alive."""
    copy = pages.copy()
    copy.flags.writeable = False
    return copy


def cut_ids(pages: PageIds, at: int) -> tuple[PageIds, PageIds]:
    """Split ``pages`` at ``at``: copy the front, keep the rest as a view if that is cheap.

    A view keeps its whole base array alive, so the rest is copied once it is less than half of
    that. At most twice the needed bytes are retained, and a page is copied O(1) times over all
    cuts.
    """
    if not pages.size:
        return NO_PAGES, NO_PAGES
    rest = pages[at:]
    owner = rest.base
    if owner is not None and 2 * rest.nbytes < owner.nbytes:
        rest = own(rest)
    return own(pages[:at]), rest


def tail_bytes(edge: memoryview, start: int) -> memoryview:
    """Return ``edge[start:]``, copied under the same rule as in :func:`cut_ids`."""
    tail = edge[start:]
    return memoryview(bytes(tail)) if 2 * len(tail) < memoryview(tail.obj).nbytes else tail


def join(parts: list[PageIds]) -> PageIds:
    """Concatenate ids that were collected from the deepest node upwards."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts[::-1]) if parts else NO_PAGES
