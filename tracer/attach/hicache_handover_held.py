"""Pages still to be digested: freeing one waits for its digest."""

import time
from threading import Lock

import numpy as np
import numpy.typing as npt

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.handover.decode import DecodeEnd
from hicache_dbg.pools.handover.requests import Receiving, RecvState
from hicache_dbg.tracer.attach.hicache_handover_beside import Job
from hicache_dbg.tracer.forks import after_fork

__all__ = ["HeldPages"]

#: The longest such wait, in seconds. If the page is reallocated then, its tiles are ``skipped{reused}``.
MOST_S = 1.0


class HeldPages:
    """The pages of pending jobs, with the allocator that they return to."""

    def __init__(self) -> None:
        self._begin()
        after_fork(self._begin)  # a child has no part in its parent's jobs, nor who holds the lock

    def _begin(self) -> None:
        self._lock = Lock()
        self._waiting: list[tuple[object, Receiving, Job]] = []

    def hold(self, end: DecodeEnd, receiving: Receiving, job: Job) -> None:
        """Note that ``job`` will digest the pages of a request at ``end`` once it has landed."""
        allocator = getattr(end.generation, "__self__", None)
        with self._lock:
            self._waiting = [one for one in self._waiting if not one[2].over]
            self._waiting.append((allocator, receiving, job))

    def freed(self, allocator: PageAllocator, page_ids: npt.ArrayLike) -> None:
        """Wait for the jobs of pages that are about to be freed."""
        if not self._waiting:
            return
        with self._lock:
            waiting = [one for one in self._waiting if one[0] is allocator and not one[2].over]
        wanted = [
            job
            for _, receiving, job in waiting
            if receiving.state is not RecvState.FAILED  # its job is dropped, by this thread perhaps
            and np.isin(receiving.pages, page_ids).any()
        ]
        if wanted:
            for _, _, job in waiting:  # they run in order, so none may give way any longer
                job.hurry()
        until = time.monotonic() + MOST_S
        for job in wanted:
            job.wait(max(0.0, until - time.monotonic()))
