"""One word per page: whether it is taken, and how many users hold, read and write it.

In the common case all pages of a copy are taken (or all unknown) and idle when it opens, and have
no user but that copy when it closes. Either is a single comparison of bytes; counting happens only
if that fails.
"""

import numpy as np
import numpy.typing as npt

__all__ = ["FREE", "HOLD", "READ", "TAKEN", "UNKNOWN", "WRITE", "Words", "repeats", "times_named"]

Pages = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_BITS = 20
_MOST = (1 << _BITS) - 1
#: One user of a page, by kind of use; the sum of two is one user that does both.
HOLD, READ, WRITE = 1, 1 << _BITS, 1 << 2 * _BITS
#: State of the page itself, in the bits above the user counts.
UNKNOWN, FREE, TAKEN = 0, 1 << 3 * _BITS, 2 << 3 * _BITS
_USERS = FREE - 1
#: Up to this many pages, duplicates are found with a Python set, beyond by sorting.
_FEW = 64

#: Words as arrays and as bytes: numpy would convert a plain int at each assignment.
_USED = (0, HOLD, READ, WRITE, READ + HOLD, WRITE + HOLD)
_ONE = {
    word: np.array(word, np.int64)
    for word in (FREE, *(state + users for state in (UNKNOWN, TAKEN) for users in _USED))
}
_BYTES = {word: one.tobytes() for word, one in _ONE.items()}


class Words:
    """A word for each page ``0 .. pages - 1``, with up to a million users per page and kind."""

    def __init__(self, pages: int) -> None:
        self._words = np.zeros(pages, np.int64)

    def __len__(self) -> int:
        return len(self._words)

    @property
    def nbytes(self) -> int:
        """Bytes of bookkeeping."""
        return self._words.nbytes

    def all(self, pages: Pages, word: int) -> bool:
        """Return whether every page has exactly this word: its state and its users."""
        return self._words[pages].tobytes() == _BYTES[word] * len(pages)

    def alike(self, pages: Pages, users: int) -> int | None:
        """Return the common state of ``pages`` if all have exactly these users, else None.

        Only the states taken and unknown are considered.
        """
        words = self._words[pages].tobytes()
        for state in (TAKEN, UNKNOWN):
            if words == _BYTES[state + users] * len(pages):
                return state
        return None

    def set(self, pages: Pages, word: int) -> None:
        """Set the word of each page."""
        self._words[pages] = _ONE[word]

    # -- states ---------------------------------------------------------------------------------

    def are(self, pages: Pages, state: int) -> Flags:
        """Return which of ``pages`` are in this state."""
        flags: Flags = self._words[pages] & ~_USERS == state
        return flags

    def every(self, state: int) -> Flags:
        """Return which of all pages are in this state."""
        return self.are(np.arange(len(self)), state)

    def become(self, pages: Pages, state: int) -> None:
        """Put ``pages`` into this state and clear their holders; readers and writers remain."""
        self._words[pages] = (self._words[pages] & _USERS & ~_MOST) | state

    # -- users ----------------------------------------------------------------------------------

    def of(self, pages: Pages, unit: int) -> Counts:
        """Return how many users of kind ``unit`` each of ``pages`` has."""
        counts: Counts = self._words[pages] // unit & _MOST
        return counts

    def some(self, pages: Pages) -> Flags:
        """Return which of ``pages`` have any user."""
        busy: Flags = self._words[pages] & _USERS != 0
        return busy

    def busy(self) -> Pages:
        """Return all pages that have a user."""
        return np.flatnonzero(self._words & _USERS)

    def more(self, pages: Pages, unit: int) -> None:
        """Add one user for each time a page is named."""
        np.add.at(self._words, pages, unit)

    def fewer(self, pages: Pages, unit: int, wanted: Counts | int) -> None:
        """Remove ``wanted`` users of each page, but never below zero."""
        self._words[pages] -= np.minimum(self.of(pages, unit), wanted) * unit


def repeats(pages: Pages) -> bool:
    """Return whether a page is named twice."""
    if len(pages) > _FEW:
        ordered = np.sort(pages)
        return bool((ordered[1:] == ordered[:-1]).any())
    return len(set(pages.tolist())) < len(pages)


def times_named(pages: Pages) -> Pages | None:
    """Return how often each of ``pages`` is named; None if none is named twice."""
    return np.bincount(pages)[pages] if repeats(pages) else None
