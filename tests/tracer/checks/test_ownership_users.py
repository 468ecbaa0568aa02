"""Users of pages, three counts in one number, against one counter a kind; and operations that hold too."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.tracer.checks.ownership import Ownership, Pages
from hicache_dbg.tracer.checks.ownership_users import HOLD, READ, WRITE, Users
from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.events import FaultClass

PAGES = 6
UNITS = (HOLD, READ, WRITE, READ + HOLD, WRITE + HOLD)
named = st.lists(st.integers(0, PAGES - 1), min_size=1, max_size=5)


def ids(*pages: int) -> Pages:
    """Page ids."""
    return np.array(pages, np.int64)


def by(what: str) -> Access:
    """An access by a thread of no importance."""
    return Access(what, "thread")


@given(st.lists(st.tuples(st.sampled_from(UNITS), st.booleans(), named), max_size=30))
def test_the_counts_of_one_kind_never_touch_another(
    steps: list[tuple[int, bool, list[int]]],
) -> None:
    """Users come and go, pages named twice, and each kind is counted as if it were alone."""
    users = Users(PAGES)
    model: dict[int, Counter[int]] = {kind: Counter() for kind in (HOLD, READ, WRITE)}
    for unit, comes, pages in steps:
        array, times = ids(*pages), Counter(pages)
        kinds = [kind for kind in model if unit & kind]
        if comes:
            users.more(array, unit)
        for kind in kinds:
            if not comes:
                users.fewer(array, kind, ids(*(times[page] for page in pages)))
            for page, count in times.items():
                change = count if comes else -count
                model[kind][page] = max(0, model[kind][page] + change)
        every = np.arange(PAGES)
        for kind, counts in model.items():
            assert users.of(every, kind).tolist() == [counts[page] for page in range(PAGES)]
        busy = [page for page in range(PAGES) if any(counts[page] for counts in model.values())]
        assert users.busy().tolist() == busy
        assert users.none(array) == (not set(pages) & set(busy))
        assert users.some(array).tolist() == [page in busy for page in pages]


@given(unit=st.sampled_from(UNITS), other=st.sampled_from(UNITS), pages=named)
def test_only_one_user_is_told_from_any_other(unit: int, other: int, pages: list[int]) -> None:
    """``only`` is true of exactly the user that came first, and of nobody once another joins."""
    users, array = Users(PAGES), ids(*dict.fromkeys(pages))
    users.first(array, unit)
    assert users.only(array, other) == (unit == other)
    users.more(array[:1], other)
    assert not users.only(array, unit)
    users.leave(array)
    assert users.none(array)


def test_letting_go_leaves_readers_and_writers() -> None:
    """Holds end with a page's life; a copy that has it open still has it open."""
    users = Users(PAGES)
    for unit in (HOLD, HOLD, READ, WRITE + HOLD):
        users.more(ids(2), unit)
    users.let_go(ids(2))
    assert [int(users.of(ids(2), kind)[0]) for kind in (HOLD, READ, WRITE)] == [0, 1, 1]


def classes(found: list[Violation]) -> list[tuple[FaultClass, tuple[int, ...]]]:
    """Class and pages of each violation."""
    return [(item.cls, item.pages) for item in found]


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("others", [0, 1])
def test_an_operation_that_holds_gives_its_holds_back(*, writes: bool, others: int) -> None:
    """Opened and closed with holds, beside another holder or none: the page is as it was before."""
    book = Ownership("host", PAGES)
    book.alloc(ids(1, 3), ids(1, 1), 0, by("alloc"))
    for _ in range(others):
        book.acquire(ids(1, 3), by("other"))
    assert book.open(ids(1, 3), by("copy"), writes=writes, holds=True) == []
    assert classes(book.idle(by("not yet"))) == [(FaultClass.DOUBLE_FREE, (1, 3))]
    assert book.close(ids(1, 3), by("ack"), writes=writes, holds=True) == []
    assert len(book.idle(by("after"))) == others
    for _ in range(others):
        assert book.release(ids(1, 3), by("other")) == []
    assert book.idle(by("idle")) == []


def test_a_page_named_twice_is_held_and_closed_twice() -> None:
    """An operation that names a page twice holds it twice; closed with one hold too many, it is told."""
    book = Ownership("host", PAGES)
    book.alloc(ids(4), ids(1), 0, by("alloc"))
    book.open(ids(4, 4), by("copy"), writes=False, holds=True)
    assert book.close(ids(4, 4), by("ack"), writes=False, holds=True) == []
    book.open(ids(4), by("copy"), writes=False, holds=True)
    (found,) = book.close(ids(4, 4), by("ack"), writes=False, holds=True)
    assert (found.cls, found.pages) == (FaultClass.DOUBLE_FREE, (4,))
