"""Page allocation with generations, owners and open readers, at a few bytes a page.

The *generation* of a page counts how often it was handed out. Whoever remembers it can tell whether
the page was freed and reused since. A page with open readers cannot be freed.
"""

from collections.abc import Callable
from threading import Lock

import numpy as np
import numpy.typing as npt

from hicache_dbg.pools.indices import Ids

__all__ = ["AllocatorError", "OutOfPages", "PageAllocator"]


class OutOfPages(Exception):  # noqa: N818 (a situation that callers handle by eviction)
    """More pages were asked for than are free."""

    def __init__(self, name: str, wanted: int, available: int) -> None:
        super().__init__(f"{name}: {wanted} pages wanted, {available} available; evict and retry")
        self.wanted = wanted
        self.available = available


class AllocatorError(ValueError):
    """A page was freed twice, freed while being read, or was never handed out; no state changed."""


class PageAllocator:
    """Allocate page ids ``0 .. pages - 1``, most recently freed first; safe from any thread.

    O(1) per page, with 25 B of bookkeeping per page. Every method is all or nothing: it handles all
    pages of the call or raises and changes none. Page ids are integers of any shape and are
    flattened; results are 1-D, one entry per page in the same order.

    Raises:
        AllocatorError: a method was given a page id that is out of range or in another state than
            the method expects; the message names the first such page.
    """

    def __init__(self, pages: int, name: str) -> None:
        if not 1 <= pages < 2**31:
            raise ValueError(f"{name}: {pages} pages, expected 1 to {2**31 - 1}")
        self.pages = pages
        self.name = name
        self._lock = Lock()
        self._free = np.arange(pages - 1, -1, -1, dtype=np.int32)  # a stack, top at _available
        self._available = pages
        self._taken = np.zeros(pages, dtype=np.bool_)
        self._generation = np.zeros(pages, dtype=np.uint32)
        self._readers = np.zeros(pages, dtype=np.int32)
        self._owner = np.zeros(pages, dtype=np.int64)
        self._mark = np.zeros(pages, dtype=np.int32)  # scratch of the duplicate check

    @property
    def available(self) -> int:
        """Number of free pages."""
        return self._available

    @property
    def nbytes(self) -> int:
        """Bytes of bookkeeping, over all pages."""
        arrays = (self._free, self._taken, self._generation, self._readers, self._owner, self._mark)
        return sum(array.nbytes for array in arrays)

    def alloc(self, count: int, owner: int = 0) -> Ids:
        """Hand out ``count`` pages to ``owner``.

        Returns:
            Page ids, int64 of shape ``[count]``.

        Raises:
            OutOfPages: fewer than ``count`` pages are free; the error holds both numbers.
        """
        if count < 0:
            raise AllocatorError(f"{self.name}: {count} pages wanted, expected 0 or more")
        if not -(2**63) <= owner < 2**63:  # before any page is taken
            raise AllocatorError(f"{self.name}: owner {owner}, expected a 64-bit signed integer")
        with self._lock:
            if count > self._available:
                raise OutOfPages(self.name, count, self._available)
            top = self._available
            pages = self._free[top - count : top][::-1].astype(np.int64)
            self._available = top - count
            self._taken[pages] = True
            self._generation[pages] += np.uint32(1)
            self._owner[pages] = owner
            return pages

    def free(self, page_ids: npt.ArrayLike) -> None:
        """Take pages back.

        Refuse pages that are free already, repeated in the call, or still read.
        """
        with self._lock:
            pages = self._valid(page_ids, "free")
            self._refuse(pages, self._repeated(pages), "free", "is named twice in one call")
            self._refuse(pages, ~self._taken[pages], "free", "is free already (a double free)")
            self._refuse(
                pages,
                self._readers[pages] > 0,
                "free",
                "is still read",
                lambda page: f"{self._readers[page]} open readers",
            )
            self._taken[pages] = False
            self._free[self._available : self._available + pages.size] = pages[::-1]
            self._available += pages.size

    def acquire(self, page_ids: npt.ArrayLike) -> None:
        """Open one reader on each page; refuse free pages."""
        with self._lock:
            pages = self._valid(page_ids, "acquire")
            self._refuse(pages, ~self._taken[pages], "acquire", "is free")
            np.add.at(self._readers, pages, 1)

    def release(self, page_ids: npt.ArrayLike) -> None:
        """Close one reader on each page; refuse pages without an open reader."""
        with self._lock:
            pages = self._valid(page_ids, "release")
            np.subtract.at(self._readers, pages, 1)
            below = self._readers[pages] < 0
            if below.any():
                np.add.at(self._readers, pages, 1)
                self._refuse(pages, below, "release", "has no reader left to release")

    def generation(self, page_ids: npt.ArrayLike) -> npt.NDArray[np.uint32]:
        """Return how often each page has been handed out so far."""
        return self._generation[self._valid(page_ids, "generation")]

    def owner(self, page_ids: npt.ArrayLike) -> Ids:
        """Return the owner to whom each page was last handed out."""
        return self._owner[self._valid(page_ids, "owner")]

    def readers(self, page_ids: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """Return how many readers each page has open."""
        return self._readers[self._valid(page_ids, "readers")]

    def taken(self, page_ids: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Return which pages are handed out at present."""
        return self._taken[self._valid(page_ids, "taken")]

    def check(self) -> None:
        """Verify the bookkeeping: every page is either taken or on the free stack exactly once."""
        with self._lock:
            free = self._free[: self._available]
            taken = int(np.count_nonzero(self._taken))
            if taken + free.size != self.pages:
                raise AllocatorError(
                    f"{self.name}: {taken} taken and {free.size} free pages, "
                    f"expected {self.pages} in all"
                )
            if self._taken[free].any() or np.unique(free).size != free.size:
                raise AllocatorError(f"{self.name}: a page is on the free stack twice, or taken")
            if (self._readers[~self._taken] != 0).any() or (self._readers < 0).any():
                raise AllocatorError(f"{self.name}: a free page has open readers")

    def _valid(self, page_ids: npt.ArrayLike, verb: str) -> Ids:
        given = np.asarray(page_ids)
        if given.size and given.dtype.kind not in "iu":  # a mask, for example
            raise AllocatorError(
                f"{self.name}: {verb}: page ids of dtype {given.dtype}, expected integers"
            )
        pages = given.astype(np.int64, copy=False).reshape(-1)
        outside = (pages < 0) | (pages >= self.pages)
        self._refuse(pages, outside, verb, f"is out of range (0..{self.pages - 1})")
        return pages

    def _repeated(self, pages: Ids) -> npt.NDArray[np.bool_]:
        order = np.arange(pages.size, dtype=np.int32)
        self._mark[pages] = order
        return np.not_equal(self._mark[pages], order)

    def _refuse(
        self,
        pages: Ids,
        wrong: npt.NDArray[np.bool_],
        verb: str,
        why: str,
        detail: Callable[[int], str] | None = None,
    ) -> None:
        if not wrong.any():
            return
        page = int(pages[wrong.argmax()])
        facts = [f"{int(np.count_nonzero(wrong))} of {pages.size} pages refused"]
        if 0 <= page < self.pages:
            facts.append(f"generation {self._generation[page]}, owner {self._owner[page]}")
        if detail is not None:
            facts.append(detail(page))
        raise AllocatorError(f"{self.name}: {verb}: page {page} {why}; {'; '.join(facts)}")
