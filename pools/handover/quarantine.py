"""Pages of failed requests that a peer may still write."""

import numpy as np

from hicache_dbg.pools.indices import Ids

__all__ = ["Quarantine"]


class Quarantine:
    """Pages keyed by the attempt that may still write them. None is handed out before its release."""

    def __init__(self) -> None:
        self._held: dict[int, Ids] = {}

    @property
    def pages(self) -> Ids:
        """All held pages."""
        return np.concatenate([np.empty(0, np.int64), *self._held.values()])

    def hold(self, attempt: int, pages: Ids) -> None:
        """Hold ``pages`` until ``attempt`` can no longer write."""
        if attempt in self._held:
            raise ValueError(
                f"attempt {attempt} is held already, with {self._held[attempt].size} pages"
            )
        self._held[attempt] = pages

    def release(self, attempt: int) -> Ids:
        """Return the pages of an attempt that has written its last byte; empty if it held none."""
        return self._held.pop(attempt, np.empty(0, np.int64))

    def release_all(self) -> Ids:
        """Return all pages, once no attempt of this peer can write."""
        pages, self._held = self.pages, {}
        return pages
