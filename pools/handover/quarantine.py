"""Pages that a peer may still write, though nobody waits for them any more."""

import numpy as np

from hicache_dbg.pools.indices import Ids

__all__ = ["Quarantine"]


class Quarantine:
    """Pages by the attempt that was allowed to write them; none is handed out before it is released."""

    def __init__(self) -> None:
        self._held: dict[int, Ids] = {}

    @property
    def pages(self) -> Ids:
        """All pages that are held back."""
        return np.concatenate([np.empty(0, np.int64), *self._held.values()])

    def hold(self, attempt: int, pages: Ids) -> None:
        """Keep ``pages`` until ``attempt`` can write no more."""
        if attempt in self._held:
            raise ValueError(
                f"attempt {attempt} is held already, with {self._held[attempt].size} pages"
            )
        self._held[attempt] = pages

    def release(self, attempt: int) -> Ids:
        """The attempt has written its last byte: its pages, or none where it held none."""
        return self._held.pop(attempt, np.empty(0, np.int64))

    def release_all(self) -> Ids:
        """No attempt of this peer can write any more."""
        pages, self._held = self.pages, {}
        return pages
