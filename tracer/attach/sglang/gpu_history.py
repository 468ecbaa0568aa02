"""The generations of host pages at the start of an operation, looked up once it is over."""

import threading
from collections import deque
from itertools import islice, takewhile
from typing import Any

import numpy as np
import torch

from hicache_dbg.tracer.attach.sglang.registry import Allocations, PoolRecord
from hicache_dbg.tracer.ledger import Pages

__all__ = ["History"]

#: The most allocations that are kept while operations are under way.
MOST = 1 << 14
#: Moments are noted without a lock: with racing threads, the oldest is one of the first so many.
_ABOUT_FIRST = 16


class History:
    """Remembers which pages were handed out since the oldest operation under way began.

    If the indices of an operation are on a GPU, its pages become known only afterwards, when they
    may have been handed out again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The moment of now.
        self.now = 0
        self._log: deque[_Given] = deque()
        self._open: deque[int] = deque()
        #: Opens an operation that began at a moment, until :meth:`end`. It takes no lock: pages that
        #: are being copied are not handed out.
        self.begun = self._open.append
        self._known_since = 0

    def note(self, source: Allocations, indices: Any) -> None:
        """Note that ``source`` handed out ``indices``."""
        with self._lock:
            source.count(indices)
            if not self._open:
                return
            self.now += 1
            self._log.append(_Given(self.now, source, indices))
            if len(self._log) > MOST:
                self._known_since = self._log.popleft().when

    def begin(self) -> int:
        """Return the current moment, and keep what follows it until :meth:`end`."""
        moment = self.now
        self.begun(moment)
        return moment

    def end(self, moment: int) -> None:
        """Drop what was kept for ``moment`` alone."""
        with self._lock:
            self._open.remove(moment)
            oldest = min(islice(self._open, _ABOUT_FIRST), default=self.now)
            while self._log and self._log[0].when <= oldest:
                self._log.popleft()

    def at(self, record: PoolRecord, pages: Pages, moment: int) -> Pages:
        """Return how often each page had been handed out at ``moment``.

        If that is no longer known, return numbers that match no other.
        """
        with self._lock:
            if moment < self._known_since:
                return np.full(len(pages), -2 - moment, np.int64)
            counts = record.generation(pages)
            since = takewhile(lambda given: given.when > moment, reversed(self._log))
            named = [given.pages() for given in since if given.source in record.sources]
        if named:
            ordered = np.sort(np.concatenate(named))
            first, last = (np.searchsorted(ordered, pages, side) for side in ("left", "right"))
            counts = counts - (last - first)
        return counts


class _Given:
    """Indices handed out at a moment, and their pages once they were asked for."""

    __slots__ = ("_indices", "_pages", "source", "when")

    def __init__(self, when: int, source: Allocations, indices: Any) -> None:
        self.when, self.source, self._indices = when, source, indices
        self._pages: Pages | None = None

    def pages(self) -> Pages:
        """Return each page once, as the counts have it."""
        if self._pages is None:
            self._pages = _pages(self.source, self._indices)
        return self._pages


def _pages(source: Allocations, indices: Any) -> Pages:
    if not isinstance(indices, torch.Tensor) or indices.device.type != "cpu":
        return np.zeros(0, np.int64)
    return np.unique(indices.numpy() // source.page)
