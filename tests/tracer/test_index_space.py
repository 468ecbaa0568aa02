"""Indices that do not mean what the path that runs takes them for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.tracer.checks.index_space import (
    IndexUse,
    TokenKernel,
    are_pages,
    check_indices,
    pages_named,
)
from hicache_dbg.tracer.events import FaultClass, Finding
from hicache_dbg.tracer.inside import inside
from hicache_dbg.tracer.words import counted

#: The kernel of DeepSeek-V4's C4 pages, in bytes.
C4 = TokenKernel(slots=64, value_bytes=576, scale_bytes=8, page_bytes=37440)


def use(host: list[int], device: list[int] | None = None, **given: object) -> IndexUse:
    """A backup of C4 slots, 64 a page."""
    facts: dict[str, object] = {
        "pool": "c4",
        "op": "backup",
        "unit": "slot",
        "slot_page": 64,
        "page_path": True,
        "host_limit": 64 * 64,
        "device_limit": 64 * 64,
        "item_bytes": 37440,
    }
    return IndexUse(
        host=np.array(host, np.int64),
        device=np.array(host if device is None else device, np.int64),
        **(facts | given),  # type: ignore[arg-type]
    )


def check(indices: IndexUse) -> list[Finding]:
    """What is found."""
    return check_indices(indices, time_ns=1, rank=3, op_id=7)


def slots(pages: list[int], page: int = 64) -> list[int]:
    """All slots of whole pages."""
    return [slot for first in pages for slot in range(first * page, (first + 1) * page)]


pages = st.lists(st.integers(0, 63), min_size=1, max_size=6, unique=True)


@given(pages, pages, st.booleans())
def test_whole_pages_are_never_found(host: list[int], device: list[int], page_path: bool) -> None:
    """Whole pages in any order, on either path, are as they should be."""
    count = min(len(host), len(device))
    given_slots = use(slots(host[:count]), slots(device[:count]), page_path=page_path)
    assert check(given_slots) == []


@given(
    pages,
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(0, 47), st.integers(-9, 9)), max_size=2),
)
def test_pages_are_named_by_whole_runs_alone(
    named: list[int], page: int, changes: list[tuple[int, int]]
) -> None:
    """Runs that begin at a page and go on by one name their pages; one index changed, none does."""
    indices = np.array(slots(named, page))
    for at, change in changes:
        indices[at % len(indices)] += change
    whole = all(
        run[0] % page == 0 and run == list(range(run[0], run[0] + page))
        for run in indices.reshape(-1, page).tolist()
    )
    found = pages_named(indices, page)
    assert (found is not None) == whole == are_pages(indices, page)
    if found is not None:
        assert found.tolist() == (indices[::page] // page).tolist()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), st.integers(0, 2**40))
def test_ids_are_inside_if_each_of_them_is(ids: list[int], limit: int) -> None:
    """From 0 up to the limit, which is not one of them; of no ids each is."""
    assert inside(np.array(ids, np.int64), limit) == all(0 <= one < limit for one in ids)


@given(st.integers(1, 4), st.integers(0, 2**32))
def test_scattered_slots_on_the_page_path_are_always_found(count: int, seed: int) -> None:
    """As many single slots as make up pages, in another order than a page's: found, by number."""
    host = np.random.default_rng(seed).permutation(64 * 64)[: count * 64].tolist()
    assert not are_pages(np.array(host), 64)  # by chance: less than once in 10**100
    (finding,) = check(use(host))
    assert finding.cls is FaultClass.INDEX_SPACE
    assert finding.got == f"{counted(count, 'whole page')} of 64"
    asked = counted(len({slot // 64 for slot in host}), "host page")
    assert finding.expected == f"{count * 64} single slots in {asked}"
    assert (finding.rank, finding.op_id, finding.pool, finding.op) == (3, 7, "c4", "backup")


def test_the_text_says_how_many_slots_keep_older_bytes() -> None:
    """64 slots that begin 17 into a page: one page is copied, and 47 pairs happen to be right."""
    host = list(range(64 + 17, 128 + 17))
    (finding,) = check(use(host))
    assert "of 64 slots (a multiple of 64) took the page path" in finding.message
    assert "the host and the device indices are no whole pages" in finding.message
    assert "it copies 1 page (host 1 with device 1), older bytes stay in 17 of the 64 slots" in (
        finding.message
    )


@pytest.mark.parametrize("end", ["host", "device"])
def test_one_broken_end_is_named(end: str) -> None:
    """A whole page at one end and halves of two at the other: only the first half is delivered."""
    whole, halves = slots([3]), slots([5])[:32] + slots([6])[32:]
    (finding,) = check(use(whole, halves) if end == "device" else use(halves, whole))
    assert f"but the {end} indices are no whole pages" in finding.message
    assert "older bytes stay in 32 of the 64 slots" in finding.message


@given(
    st.builds(TokenKernel, *(st.integers(1, 5) for _ in range(3)), st.integers(50, 60)),
    st.lists(st.integers(0, 40), min_size=1, max_size=5),
    st.integers(5, 30),
)
def test_the_token_kernel_touches_the_rows_of_all_its_bytes(
    kernel: TokenKernel, ids: list[int], row: int
) -> None:
    """Values lie in front, scales behind all values of the page; a row is wider than either."""
    touched = set()
    for page, slot in (divmod(one, kernel.slots) for one in ids):
        begin = page * kernel.page_bytes
        values = begin + slot * kernel.value_bytes
        scales = begin + kernel.slots * kernel.value_bytes + slot * kernel.scale_bytes
        touched |= {*range(values, values + kernel.value_bytes)}
        touched |= {*range(scales, scales + kernel.scale_bytes)}
    assert kernel.rows_of(np.array(ids), row) == sorted({byte // row for byte in touched})


@pytest.mark.parametrize("count", [1, 3, 63])
def test_single_slots_on_the_token_path_are_what_it_is_for(count: int) -> None:
    """The kernel's page is the pool's page: any slots will do."""
    assert check(use([9 * n for n in range(count)], page_path=False, kernel=C4)) == []


def test_the_token_kernel_on_another_pools_pages_is_found() -> None:
    """3 ids of C128's page 2: rows 173, 174 and 194 are written."""
    (finding,) = check(
        use([512, 513, 514], slot_page=256, page_path=False, item_bytes=1728, kernel=C4)
    )
    assert (finding.expected, finding.got) == ("row 2 of 1728 B", "rows 173..174, 194")
    assert finding.pages == (173, 174, 194)
    assert (
        "in 37440 B, and a page of this pool is 256 slots in one row of 1728 B" in finding.message
    )


def test_a_load_is_about_the_device_rows() -> None:
    """What a load overwrites is on the device."""
    (finding,) = check(
        use([0], [512], op="load", slot_page=256, page_path=False, item_bytes=1728, kernel=C4)
    )
    assert finding.got == "rows 173, 194"


def test_full_token_ids_in_a_c4_row_are_another_unit() -> None:
    """Rows are as wide as the kernel's, but 256 indices a page: its slots are not these indices."""
    (finding,) = check(use([300], slot_page=256, page_path=False, kernel=C4))
    assert (finding.expected, finding.got) == ("row 1 of 37440 B", "row 4")


def test_counts_that_differ_are_found() -> None:
    """3 host indices and 2 of the device cannot be pairs."""
    (finding,) = check(use([1, 2, 3], [1, 2], page_path=False))
    assert (finding.expected, finding.got) == ("2 host slots", "3 host slots")


@pytest.mark.parametrize("bad", [-1, 4096, 10**12])
@pytest.mark.parametrize("end", ["host", "device"])
def test_an_index_outside_its_end_is_found(end: str, bad: int) -> None:
    """The first one and how many there are, and which end."""
    lists = {"host": [5, 6], "device": [7, 8]}
    lists[end][1] = bad
    (finding,) = check(use(lists["host"], lists["device"], page_path=False))
    assert (finding.expected, finding.got) == (f"{end} slots 0..4095", str(bad))
    assert finding.pages == (bad // 64,)


def test_no_index_is_no_finding() -> None:
    """An empty call moves nothing."""
    assert check(use([])) == []
