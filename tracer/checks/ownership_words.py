"""What is known of each page in one number: whether it is taken, and how many hold, read and write it.

Nearly always the pages of a copy are all taken, or all unknown, and idle when it is opened, and have no
user but that copy when it is closed. Either is one look at their bytes; only where it fails is anything
counted.
"""

import numpy as np
import numpy.typing as npt

__all__ = ["FREE", "HOLD", "READ", "TAKEN", "UNKNOWN", "WRITE", "Words", "repeats", "times_named"]

Pages = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_BITS = 20
_MOST = (1 << _BITS) - 1
#: One user of a page, by what it has the page for. A sum of two is one that does both.
HOLD, READ, WRITE = 1, 1 << _BITS, 1 << 2 * _BITS
#: What is known of a page itself, above the counts of its users.
UNKNOWN, FREE, TAKEN = 0, 1 << 3 * _BITS, 2 << 3 * _BITS
_USERS = FREE - 1
#: Up to so many pages are looked through in Python when it is asked whether one is named twice.
_FEW = 64

#: As arrays and as bytes: numpy takes a plain int apart at each assignment.
_USED = (0, HOLD, READ, WRITE, READ + HOLD, WRITE + HOLD)
_ONE = {
    word: np.array(word, np.int64)
    for word in (FREE, *(state + users for state in (UNKNOWN, TAKEN) for users in _USED))
}
_BYTES = {word: one.tobytes() for word, one in _ONE.items()}


class Words:
    """A word for each page ``0 .. pages - 1``; up to a million users a page and kind."""

    def __init__(self, pages: int) -> None:
        self._words = np.zeros(pages, np.int64)

    def __len__(self) -> int:
        return len(self._words)

    @property
    def nbytes(self) -> int:
        """Bytes of bookkeeping."""
        return self._words.nbytes

    def all(self, pages: Pages, word: int) -> bool:
        """Whether this very word is each page's: its state, and its only users."""
        return self._words[pages].tobytes() == _BYTES[word] * len(pages)

    def alike(self, pages: Pages, users: int) -> int | None:
        """The state of all ``pages``, taken or unknown, where each has these users only; else None."""
        words = self._words[pages].tobytes()
        for state in (TAKEN, UNKNOWN):
            if words == _BYTES[state + users] * len(pages):
                return state
        return None

    def set(self, pages: Pages, word: int) -> None:
        """This word is each page's from now on."""
        self._words[pages] = _ONE[word]

    # -- states ---------------------------------------------------------------------------------

    def are(self, pages: Pages, state: int) -> Flags:
        """Which of ``pages`` are in this state."""
        flags: Flags = self._words[pages] & ~_USERS == state
        return flags

    def every(self, state: int) -> Flags:
        """Which of all pages are in this state."""
        return self.are(np.arange(len(self)), state)

    def become(self, pages: Pages, state: int) -> None:
        """``pages`` are in this state from now on, and nobody holds them; who reads or writes goes on."""
        self._words[pages] = (self._words[pages] & _USERS & ~_MOST) | state

    # -- users ----------------------------------------------------------------------------------

    def of(self, pages: Pages, unit: int) -> Counts:
        """How many have each of ``pages`` for ``unit``."""
        counts: Counts = self._words[pages] // unit & _MOST
        return counts

    def some(self, pages: Pages) -> Flags:
        """Which of ``pages`` somebody has."""
        busy: Flags = self._words[pages] & _USERS != 0
        return busy

    def busy(self) -> Pages:
        """All pages that somebody has."""
        return np.flatnonzero(self._words & _USERS)

    def more(self, pages: Pages, unit: int) -> None:
        """One user more for each time that a page is named."""
        np.add.at(self._words, pages, unit)

    def fewer(self, pages: Pages, unit: int, wanted: Counts | int) -> None:
        """``wanted`` users fewer of each page, but never below none."""
        self._words[pages] -= np.minimum(self.of(pages, unit), wanted) * unit


def repeats(pages: Pages) -> bool:
    """Whether a page is named twice."""
    if len(pages) > _FEW:
        ordered = np.sort(pages)
        return bool((ordered[1:] == ordered[:-1]).any())
    return len(set(pages.tolist())) < len(pages)


def times_named(pages: Pages) -> Pages | None:
    """How often each of ``pages`` is named; None where none is named twice."""
    return np.bincount(pages)[pages] if repeats(pages) else None
