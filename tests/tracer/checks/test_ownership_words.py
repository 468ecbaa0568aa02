"""State and users of a page packed into one word, against one counter per kind."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.tracer.checks.ownership import Ownership, Pages
from hicache_dbg.tracer.checks.ownership_words import (
    FREE,
    HOLD,
    READ,
    TAKEN,
    UNKNOWN,
    WRITE,
    Words,
    repeats,
    times_named,
)
from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.events import FaultClass

PAGES = 6
UNITS = (HOLD, READ, WRITE, READ + HOLD, WRITE + HOLD)
named = st.lists(st.integers(0, PAGES - 1), min_size=1, max_size=5)


def ids(*pages: int) -> Pages:
    """Page ids."""
    return np.array(pages, np.int64)


def by(what: str) -> Access:
    """Return an access by an arbitrary thread."""
    return Access(what, "thread")


@given(
    st.sampled_from((UNKNOWN, FREE, TAKEN)),
    st.lists(st.tuples(st.sampled_from(UNITS), st.booleans(), named), max_size=30),
)
def test_the_counts_of_one_kind_never_touch_another(
    state: int, steps: list[tuple[int, bool, list[int]]]
) -> None:
    """With any users, duplicates and states, each kind is counted as if it were alone."""
    words, every = Words(PAGES), np.arange(PAGES)
    words.become(every, state)
    model: dict[int, Counter[int]] = {kind: Counter() for kind in (HOLD, READ, WRITE)}
    for unit, comes, pages in steps:
        array, times = ids(*pages), Counter(pages)
        kinds = [kind for kind in model if unit & kind]
        if comes:
            words.more(array, unit)
        for kind in kinds:
            if not comes:
                words.fewer(array, kind, ids(*(times[page] for page in pages)))
            for page, count in times.items():
                change = count if comes else -count
                model[kind][page] = max(0, model[kind][page] + change)
        for kind, counts in model.items():
            assert words.of(every, kind).tolist() == [counts[page] for page in range(PAGES)]
        busy = [page for page in range(PAGES) if any(counts[page] for counts in model.values())]
        assert words.busy().tolist() == busy
        assert words.some(array).tolist() == [page in busy for page in pages]
        assert words.every(state).all()


steps = st.tuples(
    st.sampled_from(("open", "close", "alloc", "free", "forget")),
    named,
    st.booleans(),
    st.booleans(),
)


@given(st.lists(steps, max_size=25))
def test_pages_that_are_alike_are_opened_and_closed_as_one_by_one(
    taken: list[tuple[str, list[int], bool, bool]],
) -> None:
    """The fast path for equal pages reports and keeps the same as the path page by page."""
    quick, slow = Ownership("host", PAGES), Ownership("host", PAGES)
    slow._words.alike = lambda *_: None  # type: ignore[method-assign]
    for number, (act, pages, writes, holds) in enumerate(taken):
        said: list[list[Violation]] = []
        for book in (quick, slow):
            array, who = ids(*pages), by(f"{act} {number}")
            match act:
                case "open" | "close":
                    said.append(getattr(book, act)(array, who, writes=writes, holds=holds))
                case "alloc":
                    said.append(book.alloc(array, np.full(len(array), number), 0, who))
                case "free":
                    said.append(book.free(array, who))
                case _:
                    book.forget(array)
        assert said[1:] == said[:1] or not said
        assert quick._words._words.tolist() == slow._words._words.tolist()


@given(unit=st.sampled_from(UNITS), other=st.sampled_from(UNITS), pages=named)
def test_only_one_user_is_told_from_any_other(unit: int, other: int, pages: list[int]) -> None:
    """A word identifies its only user, and nobody once another joins."""
    words, array = Words(PAGES), ids(*dict.fromkeys(pages))
    words.set(array, TAKEN + unit)
    assert words.all(array, TAKEN + other) == (unit == other)
    words.more(array[:1], other)
    assert not words.all(array, TAKEN + unit)
    words.set(array, TAKEN)
    assert not words.some(array).any()


def test_a_new_life_leaves_readers_and_writers() -> None:
    """Holds end with a page's generation; an open copy stays open."""
    words = Words(PAGES)
    for unit in (HOLD, HOLD, READ, WRITE + HOLD):
        words.more(ids(2), unit)
    words.become(ids(2), FREE)
    assert [int(words.of(ids(2), kind)[0]) for kind in (HOLD, READ, WRITE)] == [0, 1, 1]
    assert words.are(ids(2, 3), FREE).tolist() == [True, False]


@given(st.lists(st.integers(0, 200), max_size=150))
def test_a_page_named_twice_is_seen_among_few_and_many(pages: list[int]) -> None:
    """Duplicates are found as by a set, and counted if there are any."""
    array = ids(*pages)
    assert repeats(array) == (len(set(pages)) < len(pages))
    times = times_named(array)
    counted = Counter(pages)
    wanted = [counted[page] for page in pages]
    assert times is None or times.tolist() == wanted
    assert (times is None) == (max(wanted, default=1) == 1)


def classes(found: list[Violation]) -> list[tuple[FaultClass, tuple[int, ...]]]:
    """Class and pages of each violation."""
    return [(item.cls, item.pages) for item in found]


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("others", [0, 1])
def test_an_operation_that_holds_gives_its_holds_back(*, writes: bool, others: int) -> None:
    """Opened and closed with holds, beside another holder or none, the page is as before."""
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


def test_a_page_named_twice_is_one_page_of_an_operation() -> None:
    """Opened and closed with the same list, alone or beside another, the page is as before."""
    book = Ownership("host", PAGES)
    book.alloc(ids(4), ids(1), 0, by("alloc"))
    for others in range(2):
        for holds in (False, True):
            assert book.open(ids(4, 4), by("copy"), writes=False, holds=holds) == []
            assert book.close(ids(4, 4), by("ack"), writes=False, holds=holds) == []
            assert len(book.idle(by("idle"))) == others
        book.acquire(ids(4), by("other"))


def test_an_operation_that_is_closed_twice_is_told() -> None:
    """The second close releases a copy and a hold that do not exist."""
    book = Ownership("host", PAGES)
    book.alloc(ids(4), ids(1), 0, by("alloc"))
    book.open(ids(4), by("copy"), writes=False, holds=True)
    assert book.close(ids(4), by("ack"), writes=False, holds=True) == []
    found = book.close(ids(4), by("ack"), writes=False, holds=True)
    assert classes(found) == [(FaultClass.DOUBLE_FREE, (4,))] * 2
