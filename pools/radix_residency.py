"""Where nodes are resident and what holds them: the part of the prefix tree below its keys.

Not thread-safe, like the tree.
"""

from collections.abc import Callable

from hicache_dbg.pools.radix_node import NO_PAGES, Node, PageIds, cut_ids, join, own, tail_bytes
from hicache_dbg.pools.radix_order import LfuOrder, LruOrder, Order
from hicache_dbg.pools.radix_types import Eviction, Policy, TreeStats

__all__ = ["ORDERS", "Residency"]

ORDERS: dict[Policy, Callable[[], Order]] = {"lru": LruOrder, "lfu": LfuOrder}


class Residency:
    """The nodes, their copies in both tiers, their holds, and the two eviction orders.

    It trusts its caller: the tree has validated the arguments.
    """

    def __init__(self, policy: Policy, page_bytes: int) -> None:
        self.root = Node(None, b"", memoryview(b""), 0)
        self.device_order = ORDERS[policy]()
        self.host_order = ORDERS[policy]()
        self._page_bytes = page_bytes
        self._nodes = 0
        self._pages = 0
        self._device_pages = 0
        self._host_pages = 0

    def add_leaf(self, parent: Node, edge: bytes, pages: int) -> Node:
        """Attach a node that has no copy in any tier yet."""
        leaf = Node(parent, edge[: self._page_bytes], memoryview(edge), pages)
        parent.children[leaf.first] = leaf
        self._nodes += 1
        self._pages += pages
        return leaf

    def split(self, parent: Node, node: Node, pages: int) -> Node:
        """Move the first ``pages`` pages of ``node`` into a new node above it; return that node.

        Only this front, which the caller has matched, is copied; the rest stays where it is.
        """
        cut = pages * self._page_bytes
        head = Node(parent, node.first, memoryview(bytes(node.edge[:cut])), pages)
        head.hits, head.holds = node.hits, node.holds
        head.device, node.device = cut_ids(node.device, pages)
        head.host, node.host = cut_ids(node.host, pages)
        parent.children[head.first] = head
        node.parent = head
        node.first = bytes(node.edge[cut : cut + self._page_bytes])
        node.edge = tail_bytes(node.edge, cut)
        node.pages -= pages
        head.children[node.first] = node
        self._nodes += 1
        if not node.holds:
            # The node keeps its place. The head goes last, which is where the walk that caused
            # the split is about to put its whole path anyway.
            for order in self._orders_of(head):
                order.pages -= pages
                order.add(head)
        return head

    def _orders_of(self, node: Node) -> list[Order]:
        """Return the orders that contain ``node`` while nothing holds it."""
        orders = []
        if node.device.size:
            orders.append(self.device_order)
        if node.host.size:
            orders.append(self.host_order)
        return orders

    def fill_device(self, node: Node, given: PageIds) -> PageIds:
        """Set the device ids of host-only nodes from ``node`` upwards; return the ids not taken.

        ``given`` ends where ``node`` ends. Counts as a use of the whole path.
        """
        refused: list[PageIds] = []
        position = given.size
        for n in node.path():
            if not n.device.size:
                n.device = own(given[position - n.pages : position])
                self._device_pages += n.pages
                if not n.holds:
                    self.device_order.add(n)
            else:
                if position:
                    _refuse(given[position - n.pages : position], n.device, refused)
                if not n.holds:
                    self.device_order.touch(n)
            if n.host.size and not n.holds:
                self.host_order.touch(n)
            position = max(0, position - n.pages)
        return join(refused)

    def fill_host(self, node: Node, given: PageIds) -> PageIds:
        """Set the host ids of nodes from ``node`` upwards; return the ids not taken.

        ``given`` ends where ``node`` ends. Counts as a use of the whole path on the host, because
        the nodes above must stand after this one in the order.
        """
        refused: list[PageIds] = []
        position = given.size
        for n in node.path():
            if position and not n.host.size:
                n.host = own(given[position - n.pages : position])
                self._host_pages += n.pages
                if not n.holds:
                    self.host_order.add(n)
            elif n.host.size:
                if position:
                    _refuse(given[position - n.pages : position], n.host, refused)
                if not n.holds:
                    self.host_order.touch(n)
            position = max(0, position - n.pages)
        return join(refused)

    def hold(self, node: Node) -> None:
        """Hold the path to ``node``: a held node is in no eviction order."""
        for n in node.path():
            if not n.holds:
                for order in self._orders_of(n):
                    order.remove(n)
            n.holds += 1
        self.root.holds += 1

    def release(self, node: Node) -> None:
        """Undo one :meth:`hold`.

        Nodes that nothing holds any more become the most recently used.
        """
        for n in node.path():
            n.holds -= 1
            if not n.holds:
                for order in self._orders_of(n):
                    order.add(n)
        self.root.holds -= 1

    def demote(self, node: Node) -> Eviction:
        """Drop the device copy of an unheld node."""
        self.device_order.remove(node)
        self._device_pages -= node.pages
        device, node.device = node.device, NO_PAGES
        return Eviction(node, device, NO_PAGES, removed=False)

    def drop_host(self, node: Node) -> Eviction:
        """Drop the host copy of an unheld node."""
        self.host_order.remove(node)
        self._host_pages -= node.pages
        host, node.host = node.host, NO_PAGES
        return Eviction(node, NO_PAGES, host, removed=False)

    def remove(self, node: Node) -> Eviction:
        """Remove an unheld node and its subtree, which is unheld too."""
        if node.parent is not None:
            del node.parent.children[node.first]
        device: list[PageIds] = []
        host: list[PageIds] = []
        stack = [node]
        while stack:
            n = stack.pop()
            stack.extend(n.children.values())
            if n.device.size:
                device.append(self.demote(n).device_pages)
            if n.host.size:
                host.append(self.drop_host(n).host_pages)
            self._nodes -= 1
            self._pages -= n.pages
            # Break the reference cycle: memory is freed now, not at the next garbage collection.
            n.parent = None
            n.children = {}
        return Eviction(node, join(device), join(host), removed=True)

    @property
    def stats(self) -> TreeStats:
        """Sizes of the tree, up to date after every call."""
        return TreeStats(
            nodes=self._nodes,
            pages=self._pages,
            device_pages=self._device_pages,
            host_pages=self._host_pages,
            evictable_device=self.device_order.pages,
            evictable_host=self.host_order.pages,
        )


def _refuse(given: PageIds, current: PageIds, refused: list[PageIds]) -> None:
    """Append to ``refused`` the given ids that differ from the current ids of the same pages."""
    if given.tobytes() != current.tobytes():
        refused.append(given[given != current])
