"""Pages that are still to be digested: whoever frees one waits until it was."""

import time
from threading import Lock

import numpy as np
import numpy.typing as npt

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.handover.decode import DecodeEnd
from hicache_dbg.tracer.attach.hicache_handover_beside import Job
from hicache_dbg.tracer.ledger import Pages

__all__ = ["HeldPages"]

#: How long a page is held back, in seconds; after that its tiles are ``skipped{reused}``.
MOST_S = 1.0


class HeldPages:
    """What the thread beside has before it, by the allocator that the pages go back to."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: list[tuple[object, Pages, Job]] = []

    def hold(self, end: DecodeEnd, pages: Pages, job: Job) -> None:
        """``pages`` were given to a request at ``end``; they are digested once ``job`` is over."""
        allocator = getattr(end.generation, "__self__", None)
        with self._lock:
            self._waiting = [one for one in self._waiting if not one[2].over]
            self._waiting.append((allocator, pages, job))

    def freed(self, allocator: PageAllocator, page_ids: npt.ArrayLike) -> None:
        """These pages are about to be free."""
        if not self._waiting:
            return
        with self._lock:
            waiting = [one for one in self._waiting if one[0] is allocator and not one[2].over]
        until = time.monotonic() + MOST_S
        for _, pages, job in waiting:
            if np.isin(pages, page_ids).any():
                job.wait(max(0.0, until - time.monotonic()))
