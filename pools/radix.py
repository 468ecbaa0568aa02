"""The prefix tree: which pages of tokens are cached, where, and which are evicted first.

A compressed radix tree whose unit is a page of tokens. An edge holds a run of pages as one buffer,
so a long prefix is compared by ``memcmp``. A child is looked up by the tokens of its first page
themselves, so no hash collision can turn into a wrong hit.

Not thread-safe, by design: the caller holds one lock, the controller's, around every call.
"""

from collections.abc import Iterator
from typing import get_args

import numpy as np
import numpy.typing as npt

from hicache_dbg.pools import radix_check
from hicache_dbg.pools.radix_input import TOKEN_BYTES, checked_ids, common_pages, encode
from hicache_dbg.pools.radix_node import Node, PageIds, join
from hicache_dbg.pools.radix_residency import Residency
from hicache_dbg.pools.radix_types import (
    Backup,
    Eviction,
    InsertResult,
    MatchResult,
    Policy,
    RadixError,
    Tokens,
    TreeStats,
)

__all__ = [
    "Backup",
    "Eviction",
    "InsertResult",
    "MatchResult",
    "Node",
    "PageIds",
    "Policy",
    "RadixError",
    "RadixTree",
    "Tokens",
    "TreeStats",
]


class RadixTree:
    """Prefix tree over whole pages of ``page_size`` tokens in two tiers, device and host.

    Two invariants always hold. A node with a device copy has a parent with one, so a match is some
    pages on the device followed by some on the host. And nothing below an unheld node is held.

    ``match`` and ``insert`` cost O(pages of the request) and eviction O(1) per evicted page,
    whatever the size of the tree. Tokens are 1-D int32 or int64 arrays of int32 values, or the
    result of :meth:`encode`; page ids are 1-D int64 arrays. Anything else, and a call that
    contradicts the state of the tree, raises :class:`RadixError` and changes nothing.
    """

    def __init__(self, page_size: int, policy: Policy = "lru") -> None:
        if page_size < 1:
            raise RadixError(f"page_size is {page_size}, expected at least 1 token")
        if policy not in get_args(Policy):
            raise RadixError(f"policy is {policy!r}, expected one of {get_args(Policy)}")
        self.policy: Policy = policy
        self._page_bytes = page_size * TOKEN_BYTES
        self._at = Residency(policy, self._page_bytes)
        self.root = self._at.root

    def encode(self, tokens: Tokens) -> bytes:
        """Return ``tokens`` as the bytes the tree compares, to be reused in several calls.

        Raises:
            RadixError: ``tokens`` is not a 1-D array of int32 values, or is bytes of a broken
                length.
        """
        return encode(tokens)

    def tokens(self, node: Node) -> npt.NDArray[np.int32]:
        """Return every token from the root to the end of ``node``."""
        edges = [n.edge for n in node.path()]
        return np.frombuffer(b"".join(reversed(edges)), dtype="<i4")

    # -- match and insert ---------------------------------------------------------------------

    def match(self, tokens: Tokens) -> MatchResult:
        """Find the longest cached prefix of ``tokens`` in whole pages, and count it as a use.

        A node that matches only in part is split, so the result ends on a node.
        """
        key = self.encode(tokens)
        node, length = self._walk(key, len(key) - len(key) % self._page_bytes)
        device: list[PageIds] = []
        host: list[PageIds] = []
        for n in node.path():
            n.hits += 1
            if n.device.size:
                device.append(n.device)
                if not n.holds:
                    self._at.device_order.promote(n)
            else:
                host.append(n.host)
            if n.host.size and not n.holds:
                self._at.host_order.promote(n)
        return MatchResult(node, length // self._page_bytes, join(device), join(host))

    def insert(self, tokens: Tokens, device_pages: PageIds) -> InsertResult:
        """Cache ``tokens`` under ``device_pages``, one id per whole page of tokens.

        Pages that the tree knows only from the host merely get their device id. Ids that the tree
        already has at the same place (the caller's own match) are kept; others are returned as
        duplicates.
        """
        key = self.encode(tokens)
        pages = len(key) // self._page_bytes
        given = checked_ids(device_pages, pages, "device")
        end = pages * self._page_bytes
        node, length = self._walk(key, end)
        matched = length // self._page_bytes
        if length < end:
            node = self._at.add_leaf(node, key[length:end], pages - matched)
        return InsertResult(node, pages - matched, self._at.fill_device(node, given))

    def find(self, tokens: Tokens) -> tuple[Node, int]:
        """Return the node and page count that :meth:`match` would find, without counting a use."""
        key = self.encode(tokens)
        node, length = self._walk(key, len(key) - len(key) % self._page_bytes)
        return node, length // self._page_bytes

    def insert_host(self, tokens: Tokens, host_pages: PageIds) -> PageIds:
        """Cache the last ``len(host_pages)`` pages of ``tokens`` on the host; counts as a use.

        Returns:
            The ids not taken because another host copy exists: the caller frees them.

        Raises:
            RadixError: the pages before them are not cached, or do not end where a node ends.
        """
        key = self.encode(tokens)
        end = len(key) - len(key) % self._page_bytes
        given = checked_ids(host_pages, host_pages.size, "host")
        node, length = self._walk(key, end)
        missing = (end - length) // self._page_bytes
        if missing > given.size:
            raise RadixError(
                f"{given.size} host pages for a prefix that lacks {missing}; insert what comes before"
            )
        if missing:
            node = self._at.add_leaf(node, key[length:end], missing)
        self._covering(node, given.size)
        return self._at.fill_host(node, given)

    def _walk(self, key: bytes, end: int) -> tuple[Node, int]:
        """Return the deepest node along ``key[:end]``, split to fit, and the bytes matched."""
        step = self._page_bytes
        node, offset = self.root, 0
        while offset < end:
            child = node.children.get(key[offset : offset + step])
            if child is None:
                break
            edge = child.edge
            if key.startswith(edge, offset, end):
                node = child
                offset += len(edge)
                continue
            common = common_pages(key, offset, end, edge, step)
            node = self._at.split(node, child, common)
            offset += common * step
            break
        return node, offset

    # -- residency ----------------------------------------------------------------------------

    def set_device(self, node: Node, device_pages: PageIds) -> PageIds:
        """Set the device ids of the last ``len(device_pages)`` pages of the path to ``node``.

        Returns:
            The ids not taken because another device copy exists: the caller frees them.

        Raises:
            RadixError: the pages do not start where a node starts, or the node above has no device
                copy.
        """
        given = checked_ids(device_pages, device_pages.size, "device")
        above = self._covering(node, given.size)
        if above is not self.root and not above.device.size:
            raise RadixError(
                f"the page above the {given.size} given has no device copy; load a prefix first"
            )
        return self._at.fill_device(node, given)

    def set_host(self, node: Node, host_pages: PageIds) -> PageIds:
        """Set the host ids of the last ``len(host_pages)`` pages of the path to ``node``.

        It takes a path suffix rather than a node because the node may have been split since its
        backup started. Counts as a use on the host.

        Returns:
            The ids not taken because another host copy exists: the caller frees them.

        Raises:
            RadixError: the pages do not start where a node starts.
        """
        given = checked_ids(host_pages, host_pages.size, "host")
        self._covering(node, given.size)
        return self._at.fill_host(node, given)

    def unbacked(self, node: Node) -> list[Node]:
        """Return the nodes on the path to ``node`` that have no host copy, shallowest first."""
        self._require_attached(node)
        return [n for n in node.path() if not n.host.size][::-1]

    def _covering(self, node: Node, pages: int) -> Node:
        """Return the node above the last ``pages`` pages of the path to ``node``."""
        self._require_attached(node)
        left = pages
        for n in node.path():
            if left <= 0:
                return n
            left -= n.pages
        if left:
            raise RadixError(
                f"{pages} page ids do not end at a node on the path, the last is {-left} past one"
                if left < 0
                else f"{pages} page ids for a path shorter by {left}"
            )
        return self.root

    # -- holds --------------------------------------------------------------------------------

    def lock(self, node: Node) -> None:
        """Protect the path to ``node`` from eviction in both tiers until :meth:`unlock`."""
        self._require_attached(node)
        self._at.hold(node)
        node.locks += 1

    def unlock(self, node: Node) -> None:
        """Undo one lock; the path becomes the most recently used.

        Raises:
            RadixError: this very node has no lock left.
        """
        if node.locks < 1:
            raise RadixError(f"unlock of {node!r}, which has no lock; each lock is undone once")
        node.locks -= 1
        self._at.release(node)

    def pin(self, node: Node) -> None:
        """Keep the path to ``node`` cached until :meth:`unpin`, independently of locks."""
        self._require_attached(node)
        self._at.hold(node)
        node.pins += 1

    def unpin(self, node: Node) -> None:
        """Undo one pin.

        Raises:
            RadixError: this very node has no pin left.
        """
        if node.pins < 1:
            raise RadixError(f"unpin of {node!r}, which has no pin; each pin is undone once")
        node.pins -= 1
        self._at.release(node)

    def _require_attached(self, node: Node) -> None:
        if node.parent is None and node is not self.root:
            raise RadixError(f"{node!r} is no longer in the tree; match its tokens again")

    # -- eviction -----------------------------------------------------------------------------

    def evict_device(self, pages: int, backup: Backup | None = None) -> list[Eviction]:
        """Evict at least ``pages`` device pages, or all that unheld nodes have if they have fewer.

        Evicts whole nodes in policy order, leaves first. A node with a host copy is demoted. One
        without is passed to ``backup``; if there is no callback or it returns ``None``, the node is
        removed together with everything below it on the host.
        """
        evictions: list[Eviction] = []
        freed = 0
        while freed < pages and (node := self._at.device_order.first()) is not None:
            if backup is not None and not node.host.size:
                host_pages = backup(node)
                if node.holds or node.parent is None:
                    continue  # no longer evictable: the callback holds or removed it
                if host_pages is not None:
                    self.set_host(node, host_pages)
            freed += node.pages
            evictions.append(self._at.demote(node) if node.host.size else self._at.remove(node))
        return evictions

    def evict_host(self, pages: int) -> list[Eviction]:
        """Evict at least ``pages`` host pages, or all that unheld nodes have if they have fewer.

        A node that also has a device copy loses only its host copy; any other is removed.
        """
        evictions: list[Eviction] = []
        freed = 0
        while freed < pages and (node := self._at.host_order.first()) is not None:
            freed += node.pages
            evictions.append(
                self._at.drop_host(node) if node.device.size else self._at.remove(node)
            )
        return evictions

    def remove(self, node: Node) -> Eviction:
        """Remove ``node`` and everything below it.

        Raises:
            RadixError: it is the root, was removed already, or it or a node below it is held.
        """
        self._require_attached(node)
        if node is self.root or node.holds:
            raise RadixError(f"remove of {node!r}: expected a node below the root with no holds")
        return self._at.remove(node)

    def clear(self) -> list[Eviction]:
        """Remove everything.

        Raises:
            RadixError: something is held.
        """
        if self.root.holds:
            raise RadixError(f"clear of a tree with {self.root.holds} holds, expected none")
        return [self._at.remove(node) for node in list(self.root.children.values())]

    # -- facts --------------------------------------------------------------------------------

    @property
    def stats(self) -> TreeStats:
        """Sizes of the tree, up to date after every call."""
        return self._at.stats

    def nodes(self) -> Iterator[Node]:
        """Yield every node except the root, parents before their children."""
        return self.root.below()

    def check(self) -> None:
        """Verify every invariant, in time linear in the tree; for tests and debugging.

        Raises:
            RadixError: an invariant does not hold; the message names the first few.
        """
        broken = radix_check.violations(self._at, self._page_bytes)
        if broken:
            raise RadixError(f"{len(broken)} invariants broken: {'; '.join(broken[:3])}")
