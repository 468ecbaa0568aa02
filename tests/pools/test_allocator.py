"""The page allocator against a model that keeps a dict."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
)

from hicache_dbg.pools.allocator import AllocatorError, OutOfPages, PageAllocator

PAGES = 12
page_lists = st.lists(st.integers(-1, PAGES), max_size=6)


class AllocatorMachine(RuleBasedStateMachine):
    """Any sequence of valid and invalid calls leaves the allocator in the model's state."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = PageAllocator(PAGES, "pool")
        self.readers: dict[int, int] = {}  # a taken page, and how many read it
        self.generation = [0] * PAGES
        self.owner = [0] * PAGES

    @rule(count=st.integers(0, PAGES + 2), owner=st.integers(0, 99))
    def alloc(self, count: int, owner: int) -> None:
        """Allocated pages were free, are distinct, and enter a new generation."""
        if count > PAGES - len(self.readers):
            with pytest.raises(OutOfPages) as refusal:
                self.allocator.alloc(count, owner)
            assert refusal.value.wanted == count
            assert refusal.value.available == PAGES - len(self.readers)
            return
        pages = self.allocator.alloc(count, owner).tolist()
        assert len(set(pages)) == count
        assert not set(pages) & set(self.readers)
        for page in pages:
            self.readers[page] = 0
            self.generation[page] += 1
            self.owner[page] = owner

    @rule(pages=page_lists)
    def free(self, pages: list[int]) -> None:
        """A free succeeds or is refused as a whole."""
        good = len(set(pages)) == len(pages) and all(self.readers.get(p, 1) == 0 for p in pages)
        self._expect(good, self.allocator.free, pages)
        if good:
            for page in pages:
                del self.readers[page]

    @rule(pages=page_lists)
    def acquire(self, pages: list[int]) -> None:
        """Only an allocated page can be read; a page named twice gets two readers."""
        good = all(page in self.readers for page in pages)
        self._expect(good, self.allocator.acquire, pages)
        if good:
            for page in pages:
                self.readers[page] += 1

    @rule(pages=page_lists)
    def release(self, pages: list[int]) -> None:
        """No page is released more often than it was acquired."""
        good = all(
            0 <= page < PAGES and self.readers.get(page, 0) >= pages.count(page) for page in pages
        )
        self._expect(good, self.allocator.release, pages)
        if good:
            for page in pages:
                self.readers[page] -= 1

    @staticmethod
    def _expect(good: bool, call: Callable[[list[int]], None], pages: list[int]) -> None:
        if good:
            call(pages)
        else:
            with pytest.raises(AllocatorError):
                call(pages)

    @invariant()
    def agrees(self) -> None:
        """Every page's state is the model's, and the counts add up."""
        pages = np.arange(PAGES)
        self.allocator.check()
        assert self.allocator.available == PAGES - len(self.readers)
        assert self.allocator.taken(pages).tolist() == [p in self.readers for p in range(PAGES)]
        assert self.allocator.readers(pages).tolist() == [
            self.readers.get(p, 0) for p in range(PAGES)
        ]
        assert self.allocator.generation(pages).tolist() == self.generation
        assert self.allocator.owner(pages).tolist() == self.owner


TestAllocatorMachine = AllocatorMachine.TestCase
TestAllocatorMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_refusals_name_the_page_and_its_state() -> None:
    """A refusal names page, generation and owner, and the number of refused pages."""
    allocator = PageAllocator(4, "host")
    pages = allocator.alloc(2, owner=7)
    allocator.acquire(pages[:1])
    with pytest.raises(AllocatorError, match=r"host: free: page 0 is still read.*owner 7; 1 open"):
        allocator.free(pages)
    allocator.release(pages[:1])
    allocator.free(pages)
    with pytest.raises(AllocatorError, match=r"page 0 is free already.*2 of 2 pages refused"):
        allocator.free(pages)
    with pytest.raises(OutOfPages, match="5 pages wanted, 4 available"):
        allocator.alloc(5)
    with pytest.raises(AllocatorError, match=r"page 4 is out of range \(0\.\.3\)"):
        allocator.generation([4])


def test_bookkeeping_is_at_most_64_bytes_a_page() -> None:
    """A page costs at most 64 bytes of bookkeeping."""
    pages = 1 << 16
    assert PageAllocator(pages, "pool").nbytes <= 64 * pages


@pytest.mark.parametrize(
    ("array", "page", "value", "told"),
    [
        ("_taken", 3, True, "2 taken and 3 free pages, expected 4"),
        ("_free", 0, 1, "on the free stack twice"),
        ("_free", 0, 0, "on the free stack twice, or taken"),
        ("_readers", 3, 1, "a free page has open readers"),
        ("_readers", 0, -1, "open readers"),
    ],
)
def test_check_sees_a_broken_state(array: str, page: int, value: int, told: str) -> None:
    """Free and taken pages make up all pages, and only taken ones have readers."""
    allocator = PageAllocator(4, "pool")
    assert allocator.alloc(1).tolist() == [0]
    allocator.check()
    getattr(allocator, array)[page] = value
    with pytest.raises(AllocatorError, match=told):
        allocator.check()
