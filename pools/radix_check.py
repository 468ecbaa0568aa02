"""Check every invariant of the prefix tree; for tests and debugging."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hicache_dbg.pools.radix_node import Node, PageIds
    from hicache_dbg.pools.radix_order import Order
    from hicache_dbg.pools.radix_residency import Residency

__all__ = ["violations"]


def violations(at: Residency, page_bytes: int) -> list[str]:
    """Return the invariants that do not hold, one sentence each; empty if all hold."""
    root = at.root
    nodes = list(root.below())
    broken = [text for node in nodes for text in _of_node(root, node, page_bytes)]
    if root.holds != _holds_of(root):
        broken.append(
            f"root has {root.holds} holds, its locks, pins and children {_holds_of(root)}"
        )
    broken += _of_order(at.device_order, "device", [n for n in nodes if n.on_device])
    broken += _of_order(at.host_order, "host", [n for n in nodes if n.on_host])
    broken += _twice([n.device for n in nodes], "device")
    broken += _twice([n.host for n in nodes], "host")
    stats = at.stats
    counted = {
        "nodes": len(nodes),
        "pages": sum(n.pages for n in nodes),
        "device_pages": sum(n.device.size for n in nodes),
        "host_pages": sum(n.host.size for n in nodes),
        "evictable_device": sum(n.device.size for n in nodes if not n.holds),
        "evictable_host": sum(n.host.size for n in nodes if not n.holds),
    }
    broken += [
        f"stats say {name} {getattr(stats, name)}, counted {value}"
        for name, value in counted.items()
        if getattr(stats, name) != value
    ]
    return broken


def _of_node(root: Node, node: Node, page_bytes: int) -> list[str]:
    parent = node.parent
    rules = {
        "its edge has its pages": node.pages > 0 and len(node.edge) == node.pages * page_bytes,
        "its first page is its key": node.edge[:page_bytes] == node.first,
        "its parent has it": parent is not None and parent.children.get(node.first) is node,
        "it is whole on the device": node.device.size in (0, node.pages),
        "it is whole on the host": node.host.size in (0, node.pages),
        "it lies somewhere": node.on_device or node.on_host,
        "a device node's parent is on the device": not node.on_device
        or parent is root
        or (parent is not None and parent.on_device),
        "its holds add up": node.holds == _holds_of(node),
        "locks and pins are not negative": node.locks >= 0 and node.pins >= 0,
        "it has no more hits than its parent": parent is root
        or (parent is not None and node.hits <= parent.hits),
        "its ids retain at most twice their size": all(map(_lean, (node.device, node.host))),
        "its edge retains at most twice its size": memoryview(node.edge.obj).nbytes
        <= 2 * len(node.edge),
    }
    return [f"{node!r}: not so that {rule}" for rule, holds in rules.items() if not holds]


def _holds_of(node: Node) -> int:
    return node.locks + node.pins + sum(child.holds for child in node.children.values())


def _lean(pages: PageIds) -> bool:
    return pages.base is None or pages.base.nbytes <= 2 * pages.nbytes


def _of_order(order: Order, tier: str, resident: list[Node]) -> list[str]:
    broken = []
    place = {node: i for i, node in enumerate(order)}
    if set(place) != {n for n in resident if not n.holds}:
        broken.append(f"the {tier} order does not hold exactly the unheld nodes of the {tier}")
    # A parent standing before its child would be evicted as if it were a leaf.
    broken += [
        f"{node!r} stands before its child in the {tier} order"
        for node in place
        for child in node.children.values()
        if child in place and place[child] > place[node]
    ]
    return broken


def _twice(ids: list[PageIds], tier: str) -> list[str]:
    every = np.concatenate([*ids, np.empty(0, dtype=np.int64)])
    again = every.size - np.unique(every).size
    return [f"{again} {tier} page ids are in the tree more than once"] if again else []
