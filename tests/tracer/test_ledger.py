"""The ledger never vouches for a page under another generation, slot range or state."""

import gc

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hicache_dbg.tracer.ledger import Book, Ledger

PAGES, LAYERS = 6, (0, 1, 2)
page_sets = st.lists(st.integers(0, PAGES - 1), min_size=1, max_size=PAGES, unique=True)
layer_sets = st.lists(st.sampled_from(LAYERS), min_size=1, unique=True)
SPANS = ((0, 64), (0, 10), (5, 7))
spans = st.sampled_from(SPANS)


class BookMachine(RuleBasedStateMachine):
    """A book against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Book(len(LAYERS), PAGES)
        self.pages: dict[int, tuple[int, tuple[int, int] | None]] = {}
        self.tiles: dict[tuple[int, int], int] = {}
        self.next_digest = 1

    @rule(
        pages=page_sets,
        generation=st.integers(0, 3),
        span=spans,
        layers=layer_sets,
        zero=st.booleans(),
    )
    def witness(
        self,
        pages: list[int],
        generation: int,
        span: tuple[int, int],
        layers: list[int],
        zero: bool,
    ) -> None:
        """Keep digests of some layers that are distinct in every layer and page, one maybe 0."""
        digests = np.arange(len(layers) * len(pages), dtype=np.uint64).reshape(len(layers), -1)
        digests += np.uint64(self.next_digest)
        self.next_digest += digests.size
        if zero:
            digests[0, 0] = 0
        ids = np.array(pages, np.int64)
        generations = np.full(len(ids), generation, np.int64)
        self.book.witness(ids, generations, tuple(layers), digests, span)
        for column, page in enumerate(pages):
            if self.pages.get(page) != (generation, span):
                self.drop(page)
            self.pages[page] = generation, span
            for row, layer in enumerate(layers):
                self.tiles[layer, page] = int(digests[row, column])  # 0: unknown

    def drop(self, page: int) -> None:
        """Nothing is known of the page's tiles."""
        self.pages.pop(page, None)
        for layer in LAYERS:
            self.tiles.pop((layer, page), None)

    @rule(pages=page_sets, generation=st.integers(0, 3))
    def leave_out(self, pages: list[int], generation: int) -> None:
        """Remember pages that were not digested on purpose."""
        ids = np.array(pages, np.int64)
        self.book.leave_out(ids, np.full(len(ids), generation, np.int64))
        for page in pages:
            self.drop(page)
            self.pages[page] = generation, None

    @rule(pages=page_sets)
    def forget(self, pages: list[int]) -> None:
        """Pages written in a way nobody followed, and some that do not exist."""
        self.book.forget(np.array([*pages, -1, PAGES], np.int64))
        for page in pages:
            self.drop(page)

    @invariant()
    def agrees(self) -> None:
        """Every tile, generation and span gets the answer the dictionary gives."""
        ids = np.arange(PAGES)
        for generation in range(4):
            for span in SPANS:
                told = self.book.expect(ids, np.full(PAGES, generation), LAYERS, span)
                for page in range(PAGES):
                    kept = self.pages.get(page)
                    assert told.sampled_out[page] == (kept == (generation, None))
                    for layer in LAYERS:
                        tile = self.tiles.get((layer, page), 0)
                        known = kept == (generation, span) and tile != 0
                        assert told.known[layer, page] == known
                        if known:
                            assert told.digests[layer, page] == tile
                    self.holds(page, generation, span)

    def holds(self, page: int, generation: int, span: tuple[int, int]) -> None:
        """The quick answer to "is it what arrived?" is yes for whole known pages only."""
        told = [self.tiles.get((layer, page), 0) for layer in LAYERS]
        known = self.pages.get(page) == (generation, span) and all(told)
        for digests in (told, [told[0] + 1, *told[1:]]):
            got = np.array(digests, np.uint64)[:, None]
            where = np.array([page]), np.array([generation])
            same = self.book.holds(*where, LAYERS, got, span, np.array([-1]))
            assert same == (known and digests == told)
            assert not self.book.holds(*where, LAYERS[::-1], got, span, np.array([-1]))
        assert self.book.knows(*where, LAYERS, span, np.array([-1])) == (known and all(told))


BookMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)
TestBook = BookMachine.TestCase


def test_a_book_costs_eight_bytes_a_tile_and_twenty_four_a_page() -> None:
    """Memory grows with tiles as the design says, so that a 64 GiB host pool stays affordable."""
    ledger, mirror = Ledger(), Mirror()
    ledger.book(mirror, "c", 61, 10_000)
    assert ledger.nbytes == 61 * 10_000 * 8 + 10_000 * 24


def test_a_page_that_was_written_again_unseen_is_not_vouched_for() -> None:
    """The same life and slots, and one write more than was witnessed: nothing is expected of it."""
    book, page, lives = Book(2, 4), np.array([1]), np.array([5])
    digests, span = np.array([[7], [8]], np.uint64), (0, 64)
    book.witness(page, lives, (0, 1), digests, span, np.array([3]))
    for writes, known in ((3, True), (4, False), (-1, True)):
        told = book.expect(page, lives, (0, 1), span, np.array([writes]))
        assert told.known.all() == told.known.any() == known
    assert book.holds(page, lives, (0, 1), digests, span, np.array([3]))
    assert not book.holds(page, lives, (0, 1), digests, span, np.array([4]))
    book.witness(page, lives, (0, 1), digests, span)  # by somebody who counts no writes
    assert book.expect(page, lives, (0, 1), span, np.array([9])).known.all()


class Mirror:
    """What owns books."""


def test_mirrors_share_no_book_and_take_theirs_along() -> None:
    """Each mirror has its own books whatever its pool is called, and they end with it."""
    ledger, one, other = Ledger(), Mirror(), Mirror()
    assert ledger.book(one, "c", 2, 4) is ledger.book(one, "c", 2, 4)
    assert ledger.book(one, "c", 2, 4) is not ledger.book(other, "c", 2, 4)
    before = ledger.nbytes
    del other
    gc.collect()
    assert ledger.nbytes == before // 2
