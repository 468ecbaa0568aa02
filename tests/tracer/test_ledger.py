"""The ledger never vouches for a page under another generation, slot range or state."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hicache_dbg.tracer.ledger import Book, Ledger

PAGES, LAYERS = 6, (0, 1, 2)
page_sets = st.lists(st.integers(0, PAGES - 1), min_size=1, max_size=PAGES, unique=True)
spans = st.sampled_from([(0, 64), (0, 10), (5, 7)])


class BookMachine(RuleBasedStateMachine):
    """A book against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Book(len(LAYERS), PAGES)
        self.model: dict[int, tuple[int, tuple[int, int] | None, int]] = {}
        self.next_digest = 1

    @rule(pages=page_sets, generation=st.integers(0, 3), span=spans)
    def witness(self, pages: list[int], generation: int, span: tuple[int, int]) -> None:
        """Keep digests that are distinct in every layer and page."""
        digests = np.arange(len(LAYERS) * len(pages), dtype=np.uint64).reshape(len(LAYERS), -1)
        digests += np.uint64(self.next_digest)
        ids = np.array(pages, np.int64)
        self.book.witness(ids, np.full(len(ids), generation, np.int64), LAYERS, digests, span)
        for at, page in enumerate(pages):
            self.model[page] = (generation, span, self.next_digest + at)
        self.next_digest += digests.size

    @rule(pages=page_sets, generation=st.integers(0, 3))
    def leave_out(self, pages: list[int], generation: int) -> None:
        """Remember pages that were not digested on purpose."""
        ids = np.array(pages, np.int64)
        self.book.leave_out(ids, np.full(len(ids), generation, np.int64))
        self.model |= dict.fromkeys(pages, (generation, None, 0))

    @rule(pages=page_sets)
    def forget(self, pages: list[int]) -> None:
        """Pages written in a way nobody followed."""
        self.book.forget(np.array(pages, np.int64))
        for page in pages:
            self.model.pop(page, None)

    @invariant()
    def agrees(self) -> None:
        """Every page, generation and span gets the answer the dictionary gives."""
        ids = np.arange(PAGES)
        for generation in range(4):
            for span in ((0, 64), (0, 10), (5, 7)):
                told = self.book.expect(ids, np.full(PAGES, generation), LAYERS, span)
                for page in range(PAGES):
                    kept = self.model.get(page)
                    same = kept is not None and kept[0] == generation
                    assert told.known[page] == (same and kept is not None and kept[1] == span)
                    assert told.sampled_out[page] == (same and kept is not None and kept[1] is None)
                    if told.known[page]:
                        assert kept is not None
                        assert int(told.digests[0, page]) == kept[2]


BookMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)
TestBook = BookMachine.TestCase


def test_a_book_costs_eight_bytes_a_tile_and_seventeen_a_page() -> None:
    """Memory grows with tiles as the design says, so that a 64 GiB host pool stays affordable."""
    ledger = Ledger()
    ledger.book("p", "c", 61, 10_000)
    assert ledger.nbytes == 61 * 10_000 * 8 + 10_000 * 17
