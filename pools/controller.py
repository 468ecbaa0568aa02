"""The cache hierarchy as a model runner uses it: match, load back, compute, insert, unlock.

The life of one request::

    controller.prefetch(tokens)                 # storage tier only: fetch its pages to the host
    match = controller.match(tokens)            # find the cached prefix and lock it
    ticket = controller.load_back(match)        # start loading the part that is on the host
    pages = controller.alloc_device(count)      # room for the new tokens
    for layer in range(layers):
        controller.wait_layer(layer, ticket)    # from here on the layer may be read
        ...
    controller.insert(tokens, all_pages)        # hand the pages over to the cache
    controller.unlock(match)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, get_args

import numpy as np
import numpy.typing as npt

from hicache_dbg.pools.allocator import OutOfPages, PageAllocator
from hicache_dbg.pools.backups import Backups, WritePolicy
from hicache_dbg.pools.failures import Failures
from hicache_dbg.pools.geometry import IoBackend
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.host import Mirror
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.loads import Loads
from hicache_dbg.pools.lookups import count_lookup
from hicache_dbg.pools.radix import InsertResult, Node, RadixTree
from hicache_dbg.pools.radix_input import TOKEN_BYTES
from hicache_dbg.pools.radix_types import Policy, Tokens
from hicache_dbg.pools.state import CacheState
from hicache_dbg.pools.stats import ControllerStats
from hicache_dbg.pools.storage.tier import StorageTier
from hicache_dbg.pools.ticket import GATE_TIMEOUT_S, LoadTicket
from hicache_dbg.pools.transfer import TransferEngine, TransferError

__all__ = ["HiCacheController", "Match"]

#: How long ``flush`` waits for copies in flight, in seconds.
FLUSH_TIMEOUT_S = 300.0


@dataclass(slots=True, eq=False)
class Match:
    """The cached prefix of a request, locked until ``unlock``.

    The first ``device_pages.size`` pages were on the device at the time of the match, the others on
    the host only. After ``load_back``, ``ticket.device_pages`` covers all of them. ``asked`` is the
    number of whole pages looked up; ``no_room`` is set if the device had no room for the host's
    part.
    """

    node: Node
    pages: int
    device_pages: Ids
    host_pages: Ids
    ticket: LoadTicket | None = None
    locked: bool = True
    asked: int = 0
    no_room: bool = False


class HiCacheController:
    """A prefix cache over a device tier and a host tier; every method is safe from any thread.

    All pools of a group move together or not at all. A host or device copy becomes visible only
    when all its bytes have arrived. Copies run on two worker threads; their errors surface in
    :meth:`wait_layer`, :meth:`flush` and :meth:`close`. Tokens are 1-D int32 or int64 arrays, page
    ids 1-D int64 arrays, timeouts are in seconds. A closed controller refuses new requests with
    ``ValueError``. In a forked child the cache is still the parent's: it refuses requests likewise,
    and closing it does nothing.

    Args:
        pools: the group, or its mirrors with the anchor first.
        policy: when pages are backed up, see :class:`~hicache_dbg.pools.backups.Backups`.
        eviction: the order in which pages are evicted.
        io_backend: how copies move bytes.
        engine: executes the copies; by default a new :class:`TransferEngine`.
        storage: the tier behind the host; none by default. Closing the controller closes it too.
    """

    def __init__(
        self,
        pools: PoolGroup | Sequence[Mirror],
        *,
        policy: WritePolicy = "write_through",
        eviction: Policy = "lru",
        io_backend: IoBackend = IoBackend.KERNEL,
        engine: TransferEngine | None = None,
        storage: StorageTier | None = None,
    ) -> None:
        if policy not in get_args(WritePolicy):
            raise ValueError(f"write policy is {policy!r}, expected one of {get_args(WritePolicy)}")
        group = pools if isinstance(pools, PoolGroup) else PoolGroup(pools)
        self.policy = policy
        self._state = CacheState(group, engine or TransferEngine(), io_backend, eviction)
        self._failures = Failures()
        self._backups = Backups(self._state, self._failures, policy)
        self._loads = Loads(self._state, self._failures)
        self.storage = storage.open(self._state) if storage is not None else None
        if self.storage is not None:
            self._state.on_host_copy = self.storage.offer

    # -- one request --------------------------------------------------------------------------

    def prefetch(self, tokens: Tokens, timeout: float | None = None) -> int:
        """Fetch pages that extend the cached prefix of ``tokens`` from storage to the host.

        Call it before :meth:`match`, which then finds these pages. Any failure in the store counts
        as a miss.

        Args:
            tokens: the tokens of the request.
            timeout: seconds to wait at most; by default the storage tier's own limit.

        Returns:
            The number of pages gained.
        """
        if self.storage is not None:
            return self.storage.prefetch(tokens, timeout)
        self._state.require_open()
        return 0

    def match(self, tokens: Tokens) -> Match:
        """Find the longest cached prefix of ``tokens``, in whole pages, and lock it."""
        state = self._state
        with state.changed:
            self._state.require_open()
            found = state.tree.match(tokens)
            asked = len(tokens) // TOKEN_BYTES if isinstance(tokens, bytes) else len(tokens)
            state.tree.lock(found.node)
            state.stats.device_hit_pages += found.device_pages.size
            state.stats.host_hit_pages += found.host_pages.size
            self._backups.consider(found.node)
            return Match(
                found.node,
                found.pages,
                found.device_pages.copy(),
                found.host_pages.copy(),
                asked=asked // state.group.page_tokens,
            )

    def load_back(self, match: Match, owner: int = 0) -> LoadTicket:
        """Start loading the part of ``match`` that is on the host only; all of it or nothing.

        Raises:
            OutOfPages: the device has no room and none can be made. The caller may go on with the
                pages that are on the device.
            ValueError: the match is already unlocked.
        """
        with self._state.changed:
            self._state.require_open()
            self._require_locked(match)
            if match.ticket is None:
                try:
                    match.ticket = self._loads.ticket(match.node, owner)
                except OutOfPages:
                    match.no_room = True
                    raise
            return match.ticket

    def wait_layer(self, layer: int, ticket: LoadTicket, timeout: float = GATE_TIMEOUT_S) -> None:
        """Block until ``layer`` (the model's layer number) may be read.

        Raises:
            TransferError: a load of the ticket failed.
            TimeoutError: the layer did not arrive within ``timeout`` seconds.
            ValueError: this is a forked child, in which no load ends.
        """
        if ticket.loads:
            self._state.require_own()
        try:
            ticket.wait_layer(layer, timeout)
        except TransferError:
            for load in ticket.loads:
                if load.error is not None:
                    self._failures.told(load.op_id)
            raise

    def alloc_device(self, pages: int, owner: int = 0) -> Ids:
        """Allocate device pages for the caller to write, evicting others if necessary.

        The caller owns the pages until :meth:`insert` or :meth:`free_device`.

        Raises:
            OutOfPages: all other pages are locked or in use.
            ValueError: this is a forked child; the pages are the parent's.
        """
        with self._state.changed:
            self._state.require_own()
            return self._state.alloc_device(pages, owner)

    def free_device(self, pages: npt.ArrayLike) -> None:
        """Free pages from :meth:`alloc_device` that will not be inserted."""
        with self._state.changed:
            self._state.device.free(pages)
            self._state.changed.notify_all()

    def insert(self, tokens: Tokens, device_pages: Ids) -> InsertResult:
        """Cache ``tokens`` under ``device_pages``, one page id per whole page of tokens.

        The pages must be full and written. The cache owns them from now on. Pages that duplicate
        what another request already inserted are freed here and listed in the result for
        information.

        Raises:
            ValueError: a page is still being loaded.
            RadixError: the number of page ids differs from the number of whole pages in ``tokens``.
        """
        state = self._state
        pages = np.asarray(device_pages, dtype=np.int64)
        with state.changed:
            self._state.require_open()
            loading = self._loads.loading(pages)
            if loading.size:
                raise ValueError(
                    f"insert of {pages.size} pages, {loading.size} of which are still being loaded "
                    f"(first {loading[0]}); wait for the last layer first"
                )
            result = state.tree.insert(tokens, pages)
            state.device.free(self._loads.not_leftover(result.duplicate_device_pages))
            self._backups.consider(result.node)
            state.changed.notify_all()
            return result

    def unlock(self, match: Match) -> None:
        """Release the matched pages; the caller must no longer read them."""
        state = self._state
        with state.changed:
            self._require_locked(match)
            match.locked = False
            count_lookup(
                state.stats.lookups,
                asked=match.asked,
                device=match.device_pages,
                host=match.host_pages,
                ticket=match.ticket,
                no_room=match.no_room,
            )
            if match.ticket is not None:
                self._loads.release(match.ticket)
            state.tree.unlock(match.node)
            state.changed.notify_all()

    def retract(self, match: Match, tokens: Tokens, device_pages: Ids) -> InsertResult:
        """Preempt a request: insert its pages, back them up at once and unlock its match.

        The pages go to the host whatever the policy, so that the request can resume from there.
        """
        with self._state.changed:
            result = self.insert(tokens, device_pages)
            self._backups.queue(result.node)
            self.unlock(match)
            return result

    # -- the whole cache ----------------------------------------------------------------------

    def pin(self, match: Match) -> None:
        """Keep the matched pages cached until :meth:`unpin`, even after ``unlock``."""
        with self._state.changed:
            self._require_locked(match)
            self._state.tree.pin(match.node)

    def unpin(self, match: Match) -> None:
        """Undo one :meth:`pin`."""
        with self._state.changed:
            self._state.tree.unpin(match.node)
            self._state.changed.notify_all()

    def flush(self, timeout: float = FLUSH_TIMEOUT_S) -> None:
        """Wait for all copies in flight.

        Raises:
            TransferError: a copy failed since the last flush.
            TimeoutError: copies are still in flight after ``timeout`` seconds.
            ValueError: this is a forked child, in which no copy ends.
        """
        state = self._state
        state.require_own()
        with state.changed:
            if not state.changed.wait_for(lambda: state.in_flight == 0, timeout):
                raise TimeoutError(f"{state.in_flight} copies still under way after {timeout} s")
        if self.storage is not None:
            self.storage.flush(timeout)
        self._failures.report()

    def close(self) -> None:
        """Finish all copies and stop the workers. In a forked child, do nothing.

        Raises:
            TransferError: a copy failed and no caller has seen its error yet.
        """
        if self._state.forked:  # copies, errors and the store are the parent's, and their locks too
            return
        with self._state.changed:  # no caller is inside a method that would queue another copy
            self._state.closed = True
        self._backups.close()
        self._loads.close()
        if self.storage is not None:
            self.storage.close()
        self._failures.report(untold_only=True)

    def check(self) -> None:
        """Verify that the tree and the allocators agree; for tests and debugging."""
        self._state.check()

    @property
    def stats(self) -> ControllerStats:
        """Counters since the start; a live object, not a snapshot."""
        return self._state.stats

    @property
    def group(self) -> PoolGroup:
        """The pools under this controller."""
        return self._state.group

    @property
    def tree(self) -> RadixTree:
        """The prefix tree; do not touch it while other threads use the controller."""
        return self._state.tree

    @property
    def allocators(self) -> dict[str, PageAllocator]:
        """The page allocators of both tiers."""
        return {"device": self._state.device, "host": self._state.host}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except TransferError as failed:
            if error is None:
                raise
            error.add_note(f"while closing: {failed}")  # do not mask the original error

    @staticmethod
    def _require_locked(match: Match) -> None:
        if not match.locked:
            raise ValueError(f"match of {match.pages} pages was unlocked already; match again")
