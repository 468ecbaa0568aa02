"""Generations of host pages as they were when an operation began, asked for when it is over."""

import threading
from collections import deque
from typing import Any

import numpy as np
import torch

from hicache_dbg.tracer.attach.sglang.registry import Allocations, PoolRecord
from hicache_dbg.tracer.ledger import Pages

__all__ = ["History"]

#: Allocations that are kept at most while operations are under way.
MOST = 1 << 14


class History:
    """Remembers which pages were given away since the oldest operation that is under way.

    Where the indices of an operation are on a GPU its pages are known only afterwards, when they
    may have been given to somebody else.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self._log: deque[tuple[int, Allocations, Any]] = deque()
        self._open: deque[int] = deque()  # ascending
        self._known_since = 0

    def note(self, source: Allocations, indices: Any) -> None:
        """``source`` gave ``indices`` away."""
        with self._lock:
            source.count(indices)
            if not self._open:
                return
            self._now += 1
            self._log.append((self._now, source, indices))
            if len(self._log) > MOST:
                self._known_since = self._log.popleft()[0]

    def begin(self) -> int:
        """The moment of now, to be closed with :meth:`end`."""
        with self._lock:
            self._open.append(self._now)
            return self._now

    def end(self, moment: int) -> None:
        """Nobody asks for ``moment`` any more."""
        with self._lock:
            self._open.remove(moment)
            oldest = self._open[0] if self._open else self._now
            while self._log and self._log[0][0] <= oldest:
                self._log.popleft()

    def at(self, record: PoolRecord, pages: Pages, moment: int) -> Pages:
        """How often each page had been given away at ``moment``.

        Where that is not known any more, numbers that are nobody else's.
        """
        with self._lock:
            if moment < self._known_since:
                return np.full(len(pages), -2 - moment, np.int64)
            counts = record.generation(pages)
            for when, source, indices in self._log:
                if when > moment and any(source is mine for mine in record.sources):
                    counts = counts - np.isin(pages, _pages(source, indices))
            return counts


def _pages(source: Allocations, indices: Any) -> Pages:
    """The pages of indices that were given away, as the counts take them."""
    if not isinstance(indices, torch.Tensor) or indices.device.type != "cpu":
        return np.zeros(0, np.int64)
    pages: Pages = indices.numpy() // source.page
    return pages
