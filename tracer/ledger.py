"""What each host page should hold: the digests taken when it was written.

Keyed by (mirror, component, layer, host page, allocation generation), because two caches may have
pools of the same name. Filled when a backup's record leaves the ring and queried when a load's
does; both happen on the bus's thread, so nothing here locks. The ledger also keeps which write of a
page it witnessed, where that is known: a later write whose record was lost must not look like
corruption. Memory: 8 B per tile plus 24 B per page and component; the extents are those of the
views.
"""

import sys
from dataclasses import dataclass
from enum import IntEnum
from weakref import finalize

import numpy as np
import numpy.typing as npt

__all__ = ["Book", "Digests", "Ledger", "PageState", "Pages"]

Pages = npt.NDArray[np.int64]
Digests = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
Span = tuple[int, int]


class PageState(IntEnum):
    """What the ledger knows of a page of one component."""

    UNKNOWN = 0
    #: Some of its layers were witnessed.
    WITNESSED = 1
    #: All of its layers were witnessed.
    WHOLE = 2
    SAMPLED_OUT = 3


@dataclass(frozen=True, slots=True)
class Expected:
    """What the ledger knows of some pages, one column per page.

    ``known`` marks the tiles whose digests are in ``digests`` (both ``[layers, pages]``);
    ``sampled_out`` marks pages left out on purpose, ``reused`` pages that were reallocated since
    they were written. All other tiles were never witnessed, or under another slot range.
    """

    known: Flags
    sampled_out: Flags
    reused: Flags
    digests: Digests


#: Write count of a page whose writes are not counted.
_ANY = -1


class Book:
    """Digests of one component of one pool, for every layer and host page."""

    def __init__(self, layers: int, pages: int) -> None:
        # One item holds all digests of a page: they are moved together as cheaply as one number.
        self._items = np.zeros(pages, f"V{8 * layers}")
        # 0 means unknown: a backup may cover only some layers. A tile whose digest really is 0
        # (one in 2**64) is therefore never verified.
        self._digests = self._items.view(np.uint64).reshape(pages, layers)
        self._layers = tuple(range(layers))
        self._generations = np.full(pages, -1, np.int64)
        self._marks = np.zeros(pages, np.int64)  # slot range and state
        self._writes = np.full(pages, _ANY, np.int64)  # write count when witnessed

    @property
    def nbytes(self) -> int:
        """Host memory of the book, in bytes."""
        arrays = (self._digests, self._generations, self._marks, self._writes)
        return sum(array.nbytes for array in arrays)

    def witness(  # noqa: PLR0917 - a tile's digest, and all that it is kept under
        self,
        pages: Pages,
        generations: Pages,
        layers: tuple[int, ...],
        digests: Digests,
        span: Span,
        writes: Pages | int = _ANY,
    ) -> None:
        """Record ``digests`` (uint64 ``[layers, pages]``) of slots ``span[0] .. span[1] - 1``.

        ``writes`` is the number of writes begun on each page by then.
        """
        self._writes[pages] = writes
        if layers == self._layers and np.count_nonzero(digests) == digests.size:
            self._items[pages] = self._as_items(digests)
            self._set(pages, generations, _mark(span, PageState.WHOLE))
            return
        self._digests[pages[~self._witnessed(pages, generations, span)]] = 0
        self._digests[pages[:, None], list(layers)] = digests.T
        whole = self._digests[pages].all(axis=1)
        marks = [_mark(span, state) for state in (PageState.WHOLE, PageState.WITNESSED)]
        self._set(pages, generations, np.where(whole, *marks))

    def leave_out(self, pages: Pages, generations: Pages) -> None:
        """Record that these pages were written but deliberately not digested."""
        self._set(pages, generations, _mark((0, 0), PageState.SAMPLED_OUT))

    def forget(self, pages: Pages) -> None:
        """Drop what is known of pages written in a way the ledger could not follow.

        Page ids out of range are ignored.
        """
        self._marks[pages[(pages >= 0) & (pages < len(self._marks))]] = PageState.UNKNOWN

    def forget_all(self) -> None:
        """Drop what is known of every page."""
        self._marks[:] = PageState.UNKNOWN

    def knows(
        self, pages: Pages, generations: Pages, layers: tuple[int, ...], span: Span, writes: Pages
    ) -> bool:
        """Return whether the digest of every one of these tiles is known, and ``layers`` are all."""
        whole = _mark(span, PageState.WHOLE).to_bytes(8, sys.byteorder) * len(pages)
        return (
            layers == self._layers
            and self._marks[pages].tobytes() == whole
            and self._generations[pages].tobytes() == generations.tobytes()
            and self._writes[pages].tobytes() == writes.tobytes()
        )

    def holds(  # noqa: PLR0917 - as witness
        self,
        pages: Pages,
        generations: Pages,
        layers: tuple[int, ...],
        digests: Digests,
        span: Span,
        writes: Pages,
    ) -> bool:
        """Return whether every one of these tiles is known and has exactly this digest."""
        return (
            self.knows(pages, generations, layers, span, writes)
            and self._items[pages].tobytes() == digests.T.tobytes()
        )

    def expect(
        self,
        pages: Pages,
        generations: Pages,
        layers: tuple[int, ...],
        span: Span,
        writes: Pages | int = _ANY,
    ) -> Expected:
        """Return what these pages should hold under ``generations`` and after ``writes`` writes."""
        same, states = self._generations[pages] == generations, self._marks[pages] & _STATES
        digests = np.ascontiguousarray(self._digests[pages][:, list(layers)].T)
        return Expected(
            known=(digests != 0)
            & self._witnessed(pages, generations, span)
            & self._written(pages, writes),
            sampled_out=same & (states == PageState.SAMPLED_OUT),
            reused=~same & (states != PageState.UNKNOWN),
            digests=digests,
        )

    def _witnessed(self, pages: Pages, generations: Pages, span: Span) -> Flags:
        """Return which pages had layers witnessed under this generation and slot range."""
        marks = [_mark(span, state) for state in (PageState.WHOLE, PageState.WITNESSED)]
        same = self._generations[pages] == generations
        witnessed: Flags = same & np.isin(self._marks[pages], marks)
        return witnessed

    def _written(self, pages: Pages, writes: Pages | int) -> Flags:
        """Return which pages have not been written again since they were witnessed, if known."""
        kept = self._writes[pages]
        same: Flags = (kept == writes) | (kept == _ANY) | (np.asarray(writes) == _ANY)
        return same

    def _as_items(self, digests: Digests) -> npt.NDArray[np.void]:
        items = np.ascontiguousarray(digests.T).view(self._items.dtype)
        return items.reshape(-1)

    def _set(self, pages: Pages, generations: Pages, marks: int | Pages) -> None:
        self._generations[pages] = generations
        self._marks[pages] = marks


_STATES = 3


def _mark(span: Span, state: PageState) -> int:
    """Pack a slot range and a state into one number."""
    return (span[0] << 32 | span[1]) << 2 | state


class Ledger:
    """The books of all mirrors' components.

    A book is opened on first use and dies with its mirror.
    """

    def __init__(self) -> None:
        self._books: dict[int, dict[str, Book]] = {}  # by identity: every copy looks one up

    def book(self, mirror: object, component: str, layers: int, pages: int) -> Book:
        """Return the book of a component of ``mirror``.

        Its extent is fixed when it is first opened.
        """
        books = self._books.get(id(mirror))
        if books is None:
            books = self._books[id(mirror)] = {}
            finalize(mirror, self._books.pop, id(mirror), None)
        book = books.get(component)
        if book is None:
            book = books[component] = Book(layers, pages)
        return book

    def forget(self) -> None:
        """Drop everything: pages were written while tracing was off."""
        for books in self._books.values():
            for book in books.values():
                book.forget_all()

    @property
    def nbytes(self) -> int:
        """Host memory of all books, in bytes."""
        return sum(book.nbytes for books in self._books.values() for book in books.values())
