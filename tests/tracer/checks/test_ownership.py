"""The ownership book: who owns which page, in which generation. Entries are those of the fault reports."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hicache_dbg.tracer.checks.ownership import Ownership, Pages
from hicache_dbg.tracer.checks.pins import Handle, Pins
from hicache_dbg.tracer.checks.violation import Access, Frame, Violation
from hicache_dbg.tracer.events import FaultClass

PAGES = 8


def ids(*pages: int) -> Pages:
    """Page ids."""
    return np.array(pages, np.int64)


def by(what: str) -> Access:
    """Return an access by an arbitrary thread."""
    return Access(what, "thread")


def owned(book: Ownership, pages: Pages, generation: int = 1, owner: int = 0) -> None:
    """Allocate pages that were free."""
    given = np.full(len(pages), generation, np.int64)
    assert book.alloc(pages, given, owner, by(f"alloc {owner}")) == []


def classes(found: list[Violation]) -> list[tuple[str, tuple[int, ...]]]:
    """Class and pages of each violation."""
    return [(item.cls.value, item.pages) for item in found]


def test_a_host_page_freed_under_a_load_is_found() -> None:
    """Entry 41: load(host 5 -> dev 9) open, evict_host(5) is a finding; acknowledged first, clean."""
    book = Ownership("host", PAGES)
    owned(book, ids(5))
    book.open(ids(5), by("load 7"), writes=False)
    (found,) = book.free(ids(5), by("evict"))
    assert (found.cls, found.pages) == (FaultClass.SLOT_REUSE, (5,))
    assert found.previous == by("load 7")
    clean = Ownership("host", PAGES)
    owned(clean, ids(5))
    clean.open(ids(5), by("load 7"), writes=False)
    clean.close(ids(5), by("ack"), writes=False)
    assert clean.free(ids(5), by("evict")) == []


def test_protecting_the_leaf_only_leaves_its_parents_bare() -> None:
    """Entry 42: a load over slots 0..7 with only the leaf's 4..7 held: finding for 0..3."""
    book = Ownership("host", PAGES)
    owned(book, ids(*range(8)))
    book.open(ids(*range(8)), by("load"), writes=False)
    assert classes(book.free(ids(0, 1, 2, 3), by("evict"))) == [("slot_reuse", (0, 1, 2, 3))]


def test_a_page_that_a_backup_writes_is_not_to_be_evicted() -> None:
    """Entry 43: backup(dev 1 -> host 4) is open, and another node's eviction takes host 4: found."""
    book = Ownership("host", PAGES)
    owned(book, ids(4))
    book.open(ids(4), by("backup"), writes=True)
    assert classes(book.free(ids(4), by("sweep"))) == [("slot_reuse", (4,))]


def test_a_reader_that_expects_an_older_life_is_found() -> None:
    """Entry 44: A's pages of generation 1 are freed early, B gets generation 2, A reads: found."""
    book = Ownership("device", PAGES)
    owned(book, ids(0, 1), generation=1, owner=65)
    assert book.free(ids(0, 1), by("first offload")) == []
    owned(book, ids(0, 1), generation=2, owner=66)
    (found,) = book.read(ids(0, 1), ids(1, 1), by("read of A"))
    assert (found.cls, found.pages) == (FaultClass.SLOT_REUSE, (0, 1))
    assert (found.expected, found.got) == ("generation 1", "generation 2, owner 66")
    assert book.read(ids(0, 1), ids(2, 2), by("read of B")) == []


def test_pages_of_a_retracted_request_are_reused_under_its_offload() -> None:
    """Entry 45: A is retracted with offload(A, 2 and 3) open, B gets both: free, allocation and read are found."""
    book = Ownership("device", PAGES)
    owned(book, ids(2, 3), generation=1)
    book.open(ids(2, 3), by("offload A"), writes=False)
    assert classes(book.free(ids(2, 3), by("retract"))) == [("slot_reuse", (2, 3))]
    handed = book.alloc(ids(2, 3), ids(2, 2), 66, by("alloc B"))
    assert classes(handed) == [("slot_reuse", (2, 3))]
    assert classes(book.read(ids(2, 3), ids(1, 1), by("ack"))) == [("slot_reuse", (2, 3))]


def test_a_read_that_outlives_its_lease_is_unusable() -> None:
    """Entry 47: the generation is checked again after the transfer; a page reallocated meanwhile is found."""
    book = Ownership("host", PAGES)
    owned(book, ids(1), generation=1)
    assert book.read(ids(1), ids(1), by("start")) == []
    book.free(ids(1), by("lease ran out"))
    (found,) = book.read(ids(1), ids(1), by("end"))
    assert (found.cls, found.words) == (
        FaultClass.SLOT_REUSE,
        "opened by a copy after it was freed",
    )


def test_the_same_tail_freed_in_two_functions() -> None:
    """Entry 51: of host 0..7, 5 completed; 5..7 are freed twice: the second free is found, and counts once."""
    book = Ownership("host", PAGES)
    owned(book, ids(*range(8)))
    assert book.balance(0, -8, by("alloc")) == []
    assert book.free(ids(5, 6, 7), by("completed")) == []
    assert book.balance(3, 3, by("completed")) == []
    (twice,) = book.free(ids(5, 6, 7), by("aborted"))
    assert (twice.cls, twice.pages, twice.previous) == (
        FaultClass.DOUBLE_FREE,
        (5, 6, 7),
        by("completed"),
    )
    (count,) = book.balance(6, 0, by("aborted"))
    assert (count.cls, count.expected, count.got) == (
        FaultClass.DOUBLE_FREE,
        "3 free pages",
        "6",
    )


def test_pages_still_held_at_idle_are_told() -> None:
    """Entry 53: ten requests have finished; a gauge that does not return to 0 is a finding."""
    book = Ownership("device", 16)
    owned(book, ids(*range(10)))
    for page in range(10):
        book.acquire(ids(page), by(f"request {page}"))
    for page in range(9):
        assert book.release(ids(page), by(f"end {page}")) == []
    (found,) = book.idle(by("idle"))
    assert (found.cls, found.pages, found.previous) == (
        FaultClass.DOUBLE_FREE,
        (9,),
        by("request 9"),
    )
    book.release(ids(9), by("end 9"))
    assert book.idle(by("idle")) == []


def test_clearing_twice_gives_no_pages_back_twice() -> None:
    """Entry 55: capacity 100, 10 allocated, cleared twice: 100 free pages, not 110."""
    book = Ownership("store", 100)
    book.balance(100, 0, by("start"))
    owned(book, ids(*range(10)))
    assert book.balance(90, -10, by("alloc")) == []
    assert book.free(ids(*range(10)), by("clear")) == []
    assert book.balance(100, 10, by("clear")) == []
    assert classes(book.free(ids(*range(10)), by("clear"))) == [("double_free", tuple(range(10)))]
    (found,) = book.balance(110, 0, by("clear"))
    assert (found.expected, found.got) == ("100 free pages", "110")


def test_a_second_unpin_is_found_with_the_first() -> None:
    """Entry 56: lookup +1, retrieve -1, cleanup -1: one finding with both call sites."""
    pins = Pins()
    pins.pin(Handle(1), by("lookup"))
    assert pins.unpin(Handle(1), by("retrieve")) == []
    (found,) = pins.unpin(Handle(1), by("cleanup"))
    assert (found.cls, found.this, found.previous) == (
        FaultClass.DOUBLE_FREE,
        by("cleanup"),
        by("retrieve"),
    )


def test_pins_that_were_taken_unseen_are_not_missed() -> None:
    """With two pins before tracing and a third seen, three may be released and no more."""
    pins = Pins()
    pins.pin(Handle(1), by("lookup"), held=3)
    for _ in range(3):
        assert pins.unpin(Handle(1), by("release")) == []
    assert len(pins.unpin(Handle(1), by("once more"))) == 1


@pytest.mark.parametrize("order", [("release", "close"), ("close", "release")])
def test_a_page_is_free_whichever_hold_goes_last(order: tuple[str, str]) -> None:
    """Entry 57: a page both held and open is idle once both end, in either order, and may be freed."""
    book = Ownership("host", PAGES)
    owned(book, ids(3))
    book.acquire(ids(3), by("ref"))
    book.open(ids(3), by("copy"), writes=False)
    for step in order:
        assert classes(book.idle(by("not yet"))) == [("double_free", (3,))]
        found = (
            book.release(ids(3), by(step))
            if step == "release"
            else book.close(ids(3), by(step), writes=False)
        )
        assert found == []
    assert book.idle(by("idle")) == []
    assert book.free(ids(3), by("free")) == []


def test_a_handle_released_with_its_io_in_flight() -> None:
    """Entry 49: a transfer handle is a slot like any other: releasing it in progress is a finding."""
    book = Ownership("handles", PAGES)
    owned(book, ids(6))
    book.open(ids(6), by("read file a"), writes=True)
    assert classes(book.free(ids(6), by("release"))) == [("slot_reuse", (6,))]


def test_a_failed_write_that_keeps_its_slot_is_a_leak() -> None:
    """Entry 23: a failed write returns without releasing its slot: one page in use, none cached."""
    book = Ownership("host", PAGES)
    book.balance(PAGES, 0, by("start"))
    owned(book, ids(2))
    assert book.balance(PAGES - 1, -1, by("alloc")) == []
    (found,) = book.used(0, by("close"))
    assert (found.cls, found.expected, found.got) == (
        FaultClass.DOUBLE_FREE,
        "0 pages in use",
        "1",
    )
    assert book.used(1, by("close")) == []


def test_a_copy_that_writes_what_another_has_open_is_found() -> None:
    """Two copies may read one page at once, but a writer must be alone."""
    book = Ownership("host", PAGES)
    owned(book, ids(1))
    assert book.open(ids(1), by("load 1"), writes=False) == []
    assert book.open(ids(1), by("load 2"), writes=False) == []
    (found,) = book.open(ids(1), by("backup 3"), writes=True)
    assert (found.cls, found.previous) == (FaultClass.SLOT_REUSE, by("load 2"))


def test_what_began_before_tracing_is_believed() -> None:
    """After a late attachment, unknown pages may be freed, released and read without a finding."""
    book = Ownership("device", PAGES)
    assert book.release(ids(0), by("release")) == []
    assert book.read(ids(1), ids(40), by("read")) == []
    assert book.free(ids(0, 1), by("free")) == []
    (found,) = book.free(ids(0), by("again"))
    assert str(found).endswith("allocated: unknown, tracing began later")


def test_a_refused_call_is_told_and_changes_nothing() -> None:
    """A double free is found even if the allocator refuses it."""
    book = Ownership("device", PAGES)
    owned(book, ids(0))
    book.acquire(ids(0), by("copy"))
    assert classes(book.free(ids(0), by("free"), refused=True)) == [("slot_reuse", (0,))]
    assert book.release(ids(0), by("ack")) == []
    assert book.free(ids(0), by("free")) == []


def test_the_report_names_both_accesses_and_the_allocation() -> None:
    """Golden text of a report: kind, page, this access, the previous one, and the allocation."""
    book = Ownership("host", PAGES)
    loads = Access("load 7", "hicache-load", (Frame("/x/pools/loads.py", 85, "_start"),))
    evicts = Access("free", "MainThread", (Frame("/x/pools/state.py", 116, "_let_go"),))
    book.alloc(ids(4, 5), ids(3, 3), 9, Access("alloc", "hicache-backup"))
    book.open(ids(4, 5), loads, writes=False)
    (found,) = book.free(ids(4, 5), evicts)
    assert str(found) == (
        "host pages 4..5: freed while a copy has it open; this access: free on MainThread at "
        "state.py:116 _let_go; previous access: load 7 on hicache-load at loads.py:85 _start; "
        "allocated: alloc on hicache-backup"
    )


def test_a_page_costs_thirty_six_bytes_of_bookkeeping() -> None:
    """A tier of a million pages costs 36 MB, as the README says."""
    assert Ownership("host", 1000).nbytes == 36 * 1000


class AgainstNaive(RuleBasedStateMachine):
    """Random pages against a naive book with one dict per page that predicts each violation."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Ownership("tier", PAGES)
        self.taken: dict[int, bool] = {}  # only pages whose life was seen to begin or end
        self.generation: dict[int, int] = {}
        self.holds: Counter[int] = Counter()
        self.copies: Counter[tuple[int, bool]] = Counter()
        self.clock = 0

    def busy(self, page: int) -> bool:
        """Return whether a copy has the page open."""
        return self.holds[page] + self.copies[page, False] + self.copies[page, True] > 0

    @staticmethod
    def same(found: list[Violation], expected: list[tuple[str, list[int]]]) -> None:
        """Book and model report the same violations for the same pages."""
        got = sorted((item.cls.value, tuple(sorted(item.pages))) for item in found)
        assert got == sorted((cls, tuple(sorted(pages))) for cls, pages in expected if pages)

    pages = st.lists(st.integers(0, PAGES - 1), min_size=1, max_size=4, unique=True)

    @rule(pages=pages)
    def alloc(self, pages: list[int]) -> None:
        """Allocate, whether free or not."""
        self.clock += 1
        given = np.full(len(pages), self.clock, np.int64)
        found = self.book.alloc(ids(*pages), given, 0, by("alloc"))
        self.same(
            found,
            [
                ("double_free", [page for page in pages if self.taken.get(page)]),
                ("slot_reuse", [page for page in pages if self.busy(page)]),
            ],
        )
        for page in pages:
            self.taken[page], self.generation[page], self.holds[page] = True, self.clock, 0

    @rule(pages=pages)
    def free(self, pages: list[int]) -> None:
        """Free, whether allocated or not."""
        found = self.book.free(ids(*pages), by("free"))
        self.same(
            found,
            [
                ("double_free", [page for page in pages if self.taken.get(page) is False]),
                ("slot_reuse", [page for page in pages if self.busy(page)]),
            ],
        )
        for page in pages:
            self.taken[page], self.holds[page] = False, 0

    @rule(pages=pages)
    def acquire(self, pages: list[int]) -> None:
        """Hold."""
        freed = [page for page in pages if self.taken.get(page) is False]
        self.same(self.book.acquire(ids(*pages), by("acquire")), [("slot_reuse", freed)])
        self.holds.update(pages)

    @rule(pages=pages)
    def release(self, pages: list[int]) -> None:
        """Release a hold."""
        below = [page for page in pages if page in self.taken and self.holds[page] < 1]
        self.same(self.book.release(ids(*pages), by("release")), [("double_free", below)])
        for page in pages:
            self.holds[page] = max(0, self.holds[page] - 1)

    @rule(pages=pages, writes=st.booleans())
    def open(self, pages: list[int], writes: bool) -> None:
        """Begin a copy."""
        freed = [page for page in pages if self.taken.get(page) is False]
        clash = [
            page
            for page in pages
            if self.copies[page, True] or (writes and self.copies[page, False])
        ]
        found = self.book.open(ids(*pages), by("open"), writes=writes)
        self.same(found, [("slot_reuse", freed), ("slot_reuse", clash)])
        self.copies.update((page, writes) for page in pages)

    @precondition(lambda self: self.copies.total() > 0)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        """End a copy."""
        page, writes = data.draw(st.sampled_from(sorted(self.copies.elements())))
        assert self.book.close(ids(page), by("close"), writes=writes) == []
        self.copies[page, writes] -= 1

    @rule(page=st.integers(0, PAGES - 1), age=st.integers(0, 2))
    def read(self, page: int, age: int) -> None:
        """Read the bytes of a generation, the present one or an older."""
        wanted = max(0, self.generation.get(page, 0) - age)
        known = page in self.taken
        stale = known and self.generation.get(page, 0) != wanted
        dead = self.taken.get(page) is False and not stale
        found = self.book.read(ids(page), ids(wanted), by("read"))
        self.same(found, [("slot_reuse", [page] if stale or dead else [])])

    @invariant()
    def idle_tells_exactly_what_is_held(self) -> None:
        """The pages that the book calls held are those of the model."""
        busy = [page for page in range(PAGES) if page in self.taken and self.busy(page)]
        self.same(self.book.idle(by("idle")), [("double_free", busy)])


TestAgainstNaive = AgainstNaive.TestCase
TestAgainstNaive.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
