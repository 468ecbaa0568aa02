"""The cache hierarchy as a model sees it: match, load back, compute, insert, let go.

A reader's turn::

    controller.prefetch(tokens)                 # with storage: what it has comes to the host
    match = controller.match(tokens)            # what is cached, and locked from here on
    ticket = controller.load_back(match)        # brings the host's part back
    pages = controller.alloc_device(count)      # room for what is new
    for layer in range(layers):
        controller.wait_layer(layer, ticket)    # now the layer may be read
        ...
    controller.insert(tokens, all_pages)        # the cache owns the pages now
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

#: How long ``flush`` waits for copies under way, in seconds.
FLUSH_TIMEOUT_S = 300.0


@dataclass(slots=True, eq=False)
class Match:
    """The cached prefix of a request, locked until ``unlock``.

    The first ``device_pages.size`` pages were on the device at the time of the match, the rest on
    the host only. After ``load_back``, ``ticket.device_pages`` has them all. ``asked`` are the whole
    pages that were looked for; ``no_room`` says that the device had none for the host's part.
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
    """A prefix cache over a device and a host tier; every method is safe from any thread.

    All pools of a group move together or not at all. A host copy counts from the moment all its
    bytes are there, and so does a device copy. Copies run on two workers; their errors come back
    from :meth:`wait_layer`, :meth:`flush` and :meth:`close`. Tokens are 1-D int32 or int64 arrays,
    page ids 1-D int64 arrays, timeouts seconds. Once closed it begins no new turn (``ValueError``).

    Args:
        pools: the group, or its mirrors with the anchor first.
        policy: when pages are backed up, see :class:`~hicache_dbg.pools.backups.Backups`.
        eviction: which pages go first.
        io_backend: how copies move bytes.
        engine: carries the copies out; one of its own by default.
        storage: the tier behind the host; none by default. It is closed with the controller.
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
        self._closed = False

    # -- a reader's turn ----------------------------------------------------------------------

    def prefetch(self, tokens: Tokens, timeout: float | None = None) -> int:
        """Bring what storage has after the cached prefix of ``tokens`` to the host; pages gained.

        To be called before :meth:`match`, which then finds them. Waits ``timeout`` seconds at most
        (default: the tier's own); whatever goes wrong in the store is a miss.
        """
        self._require_open()
        return self.storage.prefetch(tokens, timeout) if self.storage is not None else 0

    def match(self, tokens: Tokens) -> Match:
        """Find and lock the longest cached prefix of ``tokens``, in whole pages."""
        state = self._state
        with state.changed:
            self._require_open()
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
        """Begin to load what ``match`` found on the host only; all of it or, on error, nothing.

        Raises:
            OutOfPages: the device has no room and none can be made: the caller may go on with the
                pages that are on the device.
            ValueError: the match was unlocked.
        """
        with self._state.changed:
            self._require_open()
            self._require_locked(match)
            if match.ticket is None:
                try:
                    match.ticket = self._loads.ticket(match.node, owner)
                except OutOfPages:
                    match.no_room = True
                    raise
            return match.ticket

    def wait_layer(self, layer: int, ticket: LoadTicket, timeout: float = GATE_TIMEOUT_S) -> None:
        """Block until the model's ``layer`` may be read.

        Raises:
            TransferError: a load of the ticket failed.
            TimeoutError: the layer did not arrive in time.
        """
        try:
            ticket.wait_layer(layer, timeout)
        except TransferError:
            for load in ticket.loads:
                if load.error is not None:
                    self._failures.told(load.op_id)
            raise

    def alloc_device(self, pages: int, owner: int = 0) -> Ids:
        """Device pages for the caller to write, made by eviction where needed.

        They are the caller's until :meth:`insert` or :meth:`free_device`.

        Raises:
            OutOfPages: everything else is held.
        """
        with self._state.changed:
            return self._state.alloc_device(pages, owner)

    def free_device(self, pages: npt.ArrayLike) -> None:
        """Give back pages from :meth:`alloc_device` that will not be inserted."""
        with self._state.changed:
            self._state.device.free(pages)
            self._state.changed.notify_all()

    def insert(self, tokens: Tokens, device_pages: Ids) -> InsertResult:
        """Cache ``tokens`` under ``device_pages``, one for each whole page of them.

        The pages are full and written. They are the cache's from now on; those it has already
        from another reader are freed here and come back in the result for information.

        Raises:
            ValueError: a page is still being loaded.
            RadixError: as many pages as ``tokens`` has whole ones were not given.
        """
        state = self._state
        pages = np.asarray(device_pages, dtype=np.int64)
        with state.changed:
            self._require_open()
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
        """Let the matched pages go; the reader must be done with them."""
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
        """Take a reader off the device before it is done: insert, back up now, unlock.

        Its pages go to the host whatever the policy, so that it can go on from there later.
        """
        with self._state.changed:
            result = self.insert(tokens, device_pages)
            self._backups.queue(result.node)
            self.unlock(match)
            return result

    # -- the cache as a whole -----------------------------------------------------------------

    def pin(self, match: Match) -> None:
        """Keep the matched pages cached until :meth:`unpin`, also after ``unlock``."""
        with self._state.changed:
            self._require_locked(match)
            self._state.tree.pin(match.node)

    def unpin(self, match: Match) -> None:
        """Take one pin back."""
        with self._state.changed:
            self._state.tree.unpin(match.node)
            self._state.changed.notify_all()

    def flush(self, timeout: float = FLUSH_TIMEOUT_S) -> None:
        """Wait for all copies.

        Raises:
            TransferError: any failed since the last flush.
            TimeoutError: some are still under way after ``timeout`` seconds.
        """
        state = self._state
        with state.changed:
            if not state.changed.wait_for(lambda: state.in_flight == 0, timeout):
                raise TimeoutError(f"{state.in_flight} copies still under way after {timeout} s")
        if self.storage is not None:
            self.storage.flush(timeout)
        self._failures.report()

    def close(self) -> None:
        """Finish all copies and end the workers.

        Raises:
            TransferError: a copy failed, and nobody was told.
        """
        self._closed = True
        self._backups.close()
        self._loads.close()
        if self.storage is not None:
            self.storage.close()
        self._failures.report(untold_only=True)

    def check(self) -> None:
        """Verify that tree and allocators agree; for tests and debugging."""
        self._state.check()

    @property
    def stats(self) -> ControllerStats:
        """What was done so far; a live object."""
        return self._state.stats

    @property
    def group(self) -> PoolGroup:
        """The pools."""
        return self._state.group

    @property
    def tree(self) -> RadixTree:
        """The prefix tree; not to be touched while other threads use the controller."""
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
            error.add_note(f"while closing: {failed}")  # the first error is the one to see

    def _require_open(self) -> None:
        if self._closed:
            raise ValueError("the controller was closed: its workers are gone; open a new one")

    @staticmethod
    def _require_locked(match: Match) -> None:
        if not match.locked:
            raise ValueError(f"match of {match.pages} pages was unlocked already; match again")
