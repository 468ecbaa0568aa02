"""The eviction order: which node goes next, in O(1) whatever the size of the tree.

An order holds every unheld node of a tier, inner nodes included. The tree touches a path from its
deepest node upwards, so a parent always stands after its children and the first node is a leaf of
that tier. Nothing is searched, and a parent that becomes a leaf is already in its place.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

from hicache_dbg.pools.radix_node import Node

__all__ = ["LfuOrder", "LruOrder", "Order"]


class Order(Protocol):
    """Evictable nodes of one tier, next victim first."""

    #: Pages of all nodes in the order.
    pages: int
    #: Make a node the most recently used among its equals.
    touch: Callable[[Node], None]
    #: The same, for a node whose ``hits`` has just been incremented by one.
    promote: Callable[[Node], None]

    def add(self, node: Node) -> None:
        """Add a node that is not in the order, as the most recently used."""
        ...

    def remove(self, node: Node) -> None:
        """Remove a node that is in the order."""
        ...

    def first(self) -> Node | None:
        """Return the next victim without removing it, or None."""
        ...

    def __contains__(self, node: Node) -> bool: ...

    def __iter__(self) -> Iterator[Node]: ...


class LruOrder:
    """Least recently used first."""

    def __init__(self) -> None:
        self.pages = 0
        # OrderedDict's C linked list makes a touch cost about 50 ns. A plain dict would not do:
        # finding its first key walks over every key deleted before it.
        self._nodes: OrderedDict[Node, None] = OrderedDict()
        self.touch: Callable[[Node], None] = self._nodes.move_to_end
        self.promote: Callable[[Node], None] = self._nodes.move_to_end

    def add(self, node: Node) -> None:
        """Add a node that is not in the order, as the most recently used."""
        self._nodes[node] = None
        self.pages += node.pages

    def remove(self, node: Node) -> None:
        """Remove a node that is in the order."""
        del self._nodes[node]
        self.pages -= node.pages

    def first(self) -> Node | None:
        """Return the next victim without removing it, or None."""
        return next(iter(self._nodes), None)

    def __contains__(self, node: Node) -> bool:
        return node in self._nodes

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)


class LfuOrder:
    """Fewest hits first, and least recently used first among equals."""

    def __init__(self) -> None:
        self.pages = 0
        self._buckets: dict[int, OrderedDict[Node, None]] = {}
        # Hit counts that have, or had, a bucket; stale ones are skipped when they come up.
        self._counts: list[int] = []
        self.touch: Callable[[Node], None] = self._touch
        self.promote: Callable[[Node], None] = self._promote

    def _put(self, node: Node) -> None:
        bucket = self._buckets.get(node.hits)
        if bucket is None:
            bucket = self._buckets[node.hits] = OrderedDict()
            if len(self._counts) > 2 * len(self._buckets) + 16:
                # Mostly stale: a bucket that empties and refills leaves one entry each time.
                self._counts = list(self._buckets)
                heapq.heapify(self._counts)
            else:
                heapq.heappush(self._counts, node.hits)
        bucket[node] = None

    def _take(self, node: Node, hits: int) -> None:
        bucket = self._buckets[hits]
        del bucket[node]
        if not bucket:
            del self._buckets[hits]

    def _touch(self, node: Node) -> None:
        self._buckets[node.hits].move_to_end(node)

    def _promote(self, node: Node) -> None:
        self._take(node, node.hits - 1)
        self._put(node)

    def add(self, node: Node) -> None:
        """Add a node that is not in the order, as the most recently used."""
        self._put(node)
        self.pages += node.pages

    def remove(self, node: Node) -> None:
        """Remove a node that is in the order."""
        self._take(node, node.hits)
        self.pages -= node.pages

    def first(self) -> Node | None:
        """Return the next victim without removing it, or None."""
        while self._counts:
            bucket = self._buckets.get(self._counts[0])
            if bucket:
                return next(iter(bucket))
            heapq.heappop(self._counts)
        return None

    def __contains__(self, node: Node) -> bool:
        return node in self._buckets.get(node.hits, ())

    def __iter__(self) -> Iterator[Node]:
        for hits in sorted(self._buckets):
            yield from self._buckets[hits]
