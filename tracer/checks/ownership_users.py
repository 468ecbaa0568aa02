"""How many hold, read and write each page: three counts in one number, so that one look tells of all.

Nearly always nobody has the pages of a copy when it is opened, and nobody but that copy when it is
closed. Either is one comparison of bytes; only where it fails is anything counted.
"""

import numpy as np
import numpy.typing as npt

__all__ = ["HOLD", "READ", "WRITE", "Users", "repeats", "times_named"]

Pages = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_BITS = 21
_MOST = (1 << _BITS) - 1
#: One user of a page, by what it has the page for. A sum of two is one that does both.
HOLD, READ, WRITE = 1, 1 << _BITS, 1 << 2 * _BITS

#: As arrays: numpy takes a plain int apart at each assignment.
_NOBODY = np.array(0, np.int64)
_ONE = {unit: np.array(unit, np.int64) for unit in (HOLD, READ, WRITE, READ + HOLD, WRITE + HOLD)}
_BYTES = {unit: one.tobytes() for unit, one in _ONE.items()}


class Users:
    """The users of each page ``0 .. pages - 1``; up to two million a page and kind."""

    def __init__(self, pages: int) -> None:
        self._counts = np.zeros(pages, np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of bookkeeping."""
        return self._counts.nbytes

    def none(self, pages: Pages) -> bool:
        """Whether nobody has any of ``pages``."""
        return not self._counts[pages].tobytes().strip(b"\0")

    def only(self, pages: Pages, unit: int) -> bool:
        """Whether each of ``pages`` has this one user and no other."""
        return self._counts[pages].tobytes() == _BYTES[unit] * len(pages)

    def of(self, pages: Pages, unit: int) -> Counts:
        """How many have each of ``pages`` for ``unit``."""
        counts: Counts = self._counts[pages] // unit & _MOST
        return counts

    def some(self, pages: Pages) -> Flags:
        """Which of ``pages`` somebody has."""
        busy: Flags = self._counts[pages] != 0
        return busy

    def busy(self) -> Pages:
        """All pages that somebody has."""
        return np.flatnonzero(self._counts)

    def first(self, pages: Pages, unit: int) -> None:
        """Pages that nobody has get their first user; none is named twice."""
        self._counts[pages] = _ONE[unit]

    def more(self, pages: Pages, unit: int) -> None:
        """One user more for each time that a page is named."""
        np.add.at(self._counts, pages, unit)

    def leave(self, pages: Pages) -> None:
        """Nobody has ``pages`` any more."""
        self._counts[pages] = _NOBODY

    def fewer(self, pages: Pages, unit: int, wanted: Counts | int) -> None:
        """``wanted`` users fewer of each page, but never below none."""
        self._counts[pages] -= np.minimum(self.of(pages, unit), wanted) * unit

    def let_go(self, pages: Pages) -> None:
        """Nobody holds ``pages`` any more; who reads or writes them goes on."""
        self._counts[pages] -= self.of(pages, HOLD)


def repeats(pages: Pages) -> bool:
    """Whether a page is named twice."""
    return len(set(pages.tolist())) < len(pages)


def times_named(pages: Pages) -> Pages | None:
    """How often each of ``pages`` is named; None where none is named twice."""
    return np.bincount(pages)[pages] if repeats(pages) else None
