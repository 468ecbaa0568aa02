"""Cutting a node: nothing is lost, little is retained, and little is copied."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.pools.radix_node import NO_PAGES, cut_ids, join, own, tail_bytes

cuts = st.lists(st.integers(1, 40), max_size=12)


@given(pages=st.integers(1, 400), cuts=cuts)
def test_ids_survive_any_sequence_of_cuts(pages: int, cuts: list[int]) -> None:
    """Fronts and rest are the ids, read-only, and retain at most twice their bytes.

    What is copied of the rests over all cuts stays below the whole, so that a long edge that is
    matched page by page costs no more than its length.
    """
    rest = own(np.arange(pages, dtype=np.int64))
    fronts, copied = [], 0
    for at in cuts:
        if at >= rest.size:
            break
        before = rest
        front, rest = cut_ids(before, at)
        assert front.size == at
        assert front.base is None
        copied += 0 if np.shares_memory(before, rest) else rest.size
        assert rest.base is None or rest.base.nbytes <= 2 * rest.nbytes
        assert not front.flags.writeable
        assert not rest.flags.writeable
        fronts.append(front)
    assert np.concatenate([*fronts, rest]).tolist() == list(range(pages))
    assert copied < pages


@given(size=st.integers(1, 400), cuts=cuts)
def test_an_edge_survives_any_sequence_of_cuts(size: int, cuts: list[int]) -> None:
    """The tail is the bytes behind the cut, under the same two bounds."""
    data = np.arange(size, dtype=np.uint16).tobytes()
    rest, copied, start = memoryview(data), 0, 0
    for at in cuts:
        if at >= len(rest):
            break
        before, rest = rest, tail_bytes(rest, at)
        start += at
        copied += 0 if rest.obj is before.obj else len(rest)
        assert memoryview(rest.obj).nbytes <= 2 * len(rest)
        assert bytes(rest) == data[start:]
    assert copied < len(data)


def test_no_pages_are_cut_into_none() -> None:
    """A node without a copy in a tier has none on either side of a cut."""
    assert cut_ids(NO_PAGES, 3) == (NO_PAGES, NO_PAGES)


@given(st.lists(st.integers(0, 3), max_size=4))
def test_ids_collected_upwards_are_joined_downwards(sizes: list[int]) -> None:
    """The deepest node comes first, and its ids last; one part is passed on as it is."""
    every = np.arange(sum(sizes), dtype=np.int64)
    parts = np.split(every, np.cumsum(sizes)[:-1])[::-1] if sizes else []
    assert join(parts).tolist() == every.tolist()
    if len(parts) == 1:
        assert join(parts) is parts[0]
    if not parts:
        assert join(parts) is NO_PAGES
