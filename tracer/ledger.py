"""What each host page should hold: the digests taken when it was written.

Keyed by (pool, component, host page, allocation generation). Filled when a backup's record is
taken off the ring, asked when a load's is; both on the bus's thread, so nothing here locks.
Memory: 8 B a tile, 17 B a page and component.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

__all__ = ["Book", "Digests", "Ledger", "PageState", "Pages"]

Pages = npt.NDArray[np.int64]
Digests = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


class PageState(IntEnum):
    """What the ledger knows of a page of one component."""

    UNKNOWN = 0
    WITNESSED = 1
    SAMPLED_OUT = 2


@dataclass(frozen=True, slots=True)
class Expected:
    """What the ledger knows of some pages, column by column.

    ``known`` marks pages whose digests stand in ``digests`` (uint64 [layers, pages]);
    ``sampled_out`` those that were left out on purpose; the rest was never witnessed, or under
    another generation or slot range.
    """

    known: Flags
    sampled_out: Flags
    digests: Digests


class Book:
    """Digests of one component of one pool, for every layer and host page."""

    def __init__(self, layers: int, pages: int) -> None:
        self._digests = np.zeros((layers, pages), np.uint64)
        self._generations = np.full(pages, -1, np.int64)
        self._spans = np.zeros((pages, 2), np.int32)
        self._state = np.zeros(pages, np.uint8)

    @property
    def nbytes(self) -> int:
        """Host memory the book takes, in bytes."""
        return sum(
            array.nbytes for array in (self._digests, self._generations, self._spans, self._state)
        )

    def witness(
        self,
        pages: Pages,
        generations: Pages,
        layers: tuple[int, ...],
        digests: Digests,
        span: tuple[int, int],
    ) -> None:
        """Keep ``digests`` (uint64 [layers, pages]) of slots ``span[0] .. span[1] - 1``."""
        self._digests[np.array(layers)[:, None], pages] = digests
        self._set(pages, generations, PageState.WITNESSED, span)

    def leave_out(self, pages: Pages, generations: Pages) -> None:
        """Remember that these pages were written but not digested, on purpose."""
        self._set(pages, generations, PageState.SAMPLED_OUT, (0, 0))

    def forget(self, pages: Pages) -> None:
        """These pages were written in a way the ledger could not follow."""
        self._state[pages] = PageState.UNKNOWN

    def expect(
        self, pages: Pages, generations: Pages, layers: tuple[int, ...], span: tuple[int, int]
    ) -> Expected:
        """What these pages should hold under ``generations``."""
        same = self._generations[pages] == generations
        state = self._state[pages]
        covers = (self._spans[pages] == span).all(axis=1)
        return Expected(
            known=same & covers & (state == PageState.WITNESSED),
            sampled_out=same & (state == PageState.SAMPLED_OUT),
            digests=self._digests[np.array(layers)[:, None], pages],
        )

    def _set(
        self, pages: Pages, generations: Pages, state: PageState, span: tuple[int, int]
    ) -> None:
        self._generations[pages] = generations
        self._state[pages] = state
        self._spans[pages] = span


class Ledger:
    """The books of every (pool, component), opened at first use."""

    def __init__(self) -> None:
        self._books: dict[tuple[str, str], Book] = {}

    def book(self, pool: str, component: str, layers: int, pages: int) -> Book:
        """The book of a component; its extent is fixed when it is first opened."""
        key = (pool, component)
        book = self._books.get(key)
        if book is None:
            book = self._books[key] = Book(layers, pages)
        return book

    @property
    def nbytes(self) -> int:
        """Host memory of all books, in bytes."""
        return sum(book.nbytes for book in self._books.values())
