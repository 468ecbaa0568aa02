"""What each host page should hold: the digests taken when it was written.

Keyed by (mirror, component, layer, host page, allocation generation): two caches may have pools
of one name. Filled when a backup's record is taken off the ring, asked when a load's is; both on
the bus's thread, so nothing here locks. Memory: 8 B a tile, 17 B a page and component; lengths are
the views', one a pool.
"""

import sys
from dataclasses import dataclass
from enum import IntEnum
from weakref import WeakKeyDictionary

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


#: A plain int: numpy asks an enum for a dozen attributes at each comparison.
_WITNESSED = int(PageState.WITNESSED)
_ONE_WITNESSED = bytes([_WITNESSED])


@dataclass(frozen=True, slots=True)
class Expected:
    """What the ledger knows of some pages, column by column.

    ``known`` marks tiles whose digests stand in ``digests`` (both [layers, pages]);
    ``sampled_out`` pages that were left out on purpose, ``reused`` those that were given to
    somebody else since they were written; the rest was never witnessed, or another slot range.
    """

    known: Flags
    sampled_out: Flags
    reused: Flags
    digests: Digests


class Book:
    """Digests of one component of one pool, for every layer and host page."""

    def __init__(self, layers: int, pages: int) -> None:
        # 0 is not known: a backup may bring some layers only, and a tile whose digest really is 0
        # (one in 2**64) is then never vouched for.
        self._digests = np.zeros((layers, pages), np.uint64)
        self._layers = tuple(range(layers))
        self._generations = np.full(pages, -1, np.int64)
        self._spans = np.zeros(pages, np.int64)  # first << 32 | last
        self._state = np.zeros(pages, np.uint8)

    @property
    def nbytes(self) -> int:
        """Host memory the book takes, in bytes."""
        arrays = (self._digests, self._generations, self._spans, self._state)
        return sum(array.nbytes for array in arrays)

    def witness(
        self,
        pages: Pages,
        generations: Pages,
        layers: tuple[int, ...],
        digests: Digests,
        span: tuple[int, int],
    ) -> None:
        """Keep ``digests`` (uint64 [layers, pages]) of slots ``span[0] .. span[1] - 1``."""
        again = self._all_witnessed(pages, generations, span)
        if layers == self._layers:
            self._digests[:, pages] = digests
        else:
            if not again:
                self._digests[:, pages[~self._witnessed(pages, generations, span)]] = 0
            for layer, row in zip(layers, digests, strict=True):
                self._digests[layer][pages] = row
        if not again:
            self._set(pages, generations, PageState.WITNESSED, span)

    def leave_out(self, pages: Pages, generations: Pages) -> None:
        """Remember that these pages were written but not digested, on purpose."""
        self._set(pages, generations, PageState.SAMPLED_OUT, (0, 0))

    def forget(self, pages: Pages) -> None:
        """These pages were written in a way the ledger could not follow; there may be no such page."""
        self._state[pages[(pages >= 0) & (pages < len(self._state))]] = PageState.UNKNOWN

    def whole(
        self, pages: Pages, generations: Pages, layers: tuple[int, ...], span: tuple[int, int]
    ) -> Digests | None:
        """What these tiles should hold, as [layers, pages]; None unless every one of them is known."""
        if not self._all_witnessed(pages, generations, span):
            return None
        digests = self._of(pages, layers)
        return digests if np.count_nonzero(digests) == digests.size else None

    def expect(
        self, pages: Pages, generations: Pages, layers: tuple[int, ...], span: tuple[int, int]
    ) -> Expected:
        """What these pages should hold under ``generations``."""
        same = self._generations[pages] == generations
        digests = self._of(pages, layers)
        return Expected(
            known=(digests != 0) & self._witnessed(pages, generations, span),
            sampled_out=same & (self._state[pages] == PageState.SAMPLED_OUT),
            reused=~same & (self._state[pages] != PageState.UNKNOWN),
            digests=digests,
        )

    def _all_witnessed(self, pages: Pages, generations: Pages, span: tuple[int, int]) -> bool:
        """Whether :meth:`_witnessed` is true of every page, at a fraction of its cost for a few."""
        many = len(pages)
        return (
            self._generations[pages].tobytes() == generations.tobytes()
            and self._state[pages].tobytes() == _ONE_WITNESSED * many
            and self._spans[pages].tobytes() == _packed(span).to_bytes(8, sys.byteorder) * many
        )

    def _witnessed(self, pages: Pages, generations: Pages, span: tuple[int, int]) -> Flags:
        """Pages of which some layers were witnessed under this generation and slot range."""
        same = self._generations[pages] == generations
        covers = self._spans[pages] == _packed(span)
        witnessed: Flags = same & covers & (self._state[pages] == _WITNESSED)
        return witnessed

    def _of(self, pages: Pages, layers: tuple[int, ...]) -> Digests:
        digests = self._digests.take(pages, axis=1)
        return digests if layers == self._layers else digests[list(layers)]

    def _set(
        self, pages: Pages, generations: Pages, state: PageState, span: tuple[int, int]
    ) -> None:
        self._generations[pages] = generations
        self._state[pages] = state
        self._spans[pages] = _packed(span)


def _packed(span: tuple[int, int]) -> int:
    return span[0] << 32 | span[1]


class Ledger:
    """The books of every mirror's components, opened at first use and gone with the mirror."""

    def __init__(self) -> None:
        self._books: WeakKeyDictionary[object, dict[str, Book]] = WeakKeyDictionary()

    def book(self, mirror: object, component: str, layers: int, pages: int) -> Book:
        """The book of a component of ``mirror``; its extent is fixed when it is first opened."""
        books = self._books.get(mirror)
        if books is None:
            books = self._books[mirror] = {}
        book = books.get(component)
        if book is None:
            book = books[component] = Book(layers, pages)
        return book

    @property
    def nbytes(self) -> int:
        """Host memory of all books, in bytes."""
        return sum(book.nbytes for books in self._books.values() for book in books.values())
