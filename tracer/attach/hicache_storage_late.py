"""Fetched host pages that the bus has not read yet: whoever frees one reads it first."""

from collections.abc import Callable
from threading import Lock

import numpy as np
import numpy.typing as npt

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.tracer.attach.hicache_storage_record import StorageRecord
from hicache_dbg.tracer.forks import after_fork

__all__ = ["UnreadPages"]

Read = Callable[[StorageRecord, int], None]
"""Digests one page of a record, given its index in the operation."""

#: Most bytes read by one call that frees pages; anything beyond is ``skipped{reused}``.
MOST_BYTES = 256 << 20


class UnreadPages:
    """Operations whose pages await comparison on the bus's thread.

    The bytes of a page stay until it is freed. A bus that lags behind loses nothing: the thread that
    frees a page reads it first, and delays only itself.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._unlock()
        after_fork(self._unlock)  # a lock may be held by a thread that the child lacks
        self._waiting: list[tuple[PageAllocator, StorageRecord]] = []

    def _unlock(self) -> None:
        self._lock = Lock()

    def add(self, allocator: PageAllocator, record: StorageRecord) -> None:
        """Track the pages of ``record``, which belong to ``allocator``."""
        with self._lock:
            self._waiting = [one for one in self._waiting if not one[1].judged]
            self._waiting.append((allocator, record))

    def freed(self, allocator: PageAllocator, page_ids: npt.ArrayLike) -> None:
        """Read the tracked ones among these pages, which are about to be freed."""
        if not self._waiting:
            return
        with self._lock:
            waiting = [one for one in self._waiting if one[0] is allocator and not one[1].judged]
        left = MOST_BYTES
        for _, record in waiting:
            for at in np.flatnonzero(np.isin(record.host, page_ids)).tolist():
                if at not in record.payloads and left > 0:
                    self._read(record, at)
                    left -= record.image.page_bytes
