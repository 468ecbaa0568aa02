"""Rows of a transfer: however they are merged, the same bytes go to the same places."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.pools.handover.planes import (
    Descriptors,
    Plane,
    descriptors_of,
    merged,
    starts_of,
)

_ONE = np.zeros(1, np.uint64), np.zeros(1, np.uint64)


def _moves(local: Descriptors, remote: Descriptors) -> list[tuple[int, int, int, int]]:
    """Return for each byte its source and target address and devices."""
    return [
        (int(a) + at, int(b) + at, int(here), int(there))
        for (a, size, here), (b, _, there) in zip(local, remote, strict=True)
        for at in range(int(size))
    ]


def _rows(pages: Sequence[int], size: int, device: int) -> Descriptors:
    return np.array([[page * size, size, device] for page in pages], np.uint64).reshape(-1, 3)


@given(
    pairs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12),
    size=st.integers(1, 5),
)
def test_merged_rows_move_the_same_bytes(pairs: list[tuple[int, int]], size: int) -> None:
    """The order is kept, and no two remaining rows could be merged."""
    local = _rows([pair[0] for pair in pairs], size, 0)
    remote = _rows([pair[1] for pair in pairs], size, 1)
    ours, theirs = merged(local, remote, starts=_ONE)
    assert _moves(ours, theirs) == _moves(local, remote)
    ends = [rows[:-1, 0] + rows[:-1, 1] == rows[1:, 0] for rows in (ours, theirs)]
    assert not (ends[0] & ends[1]).any()


def test_rows_of_two_devices_stay_apart() -> None:
    """Consecutive addresses mean nothing across devices."""
    local = np.array([[0, 8, 0], [8, 8, 1]], np.uint64)
    assert [len(rows) for rows in merged(local, local, starts=_ONE)] == [2, 2]


def test_consecutive_pages_are_one_row_a_plane() -> None:
    """Pages allocated together are transferred as one row per plane."""
    local, remote = _rows(range(3, 9), 64, 0), _rows(range(20, 26), 64, 0)
    ours, theirs = merged(local, remote, starts=_ONE)
    assert (ours.tolist(), theirs.tolist()) == ([[192, 384, 0]], [[1280, 384, 0]])


def _planes(layers: int, pages: int, size: int, *, page_first: bool) -> tuple[Plane, ...]:
    """Return layers that lie side by side, each in a tensor of its own or page by page in one."""
    between, stride = (size, layers * size) if page_first else (pages * size, size)
    return tuple(Plane("kv", "k", at, 64 + at * between, stride, size) for at in range(layers))


@given(
    layers=st.integers(1, 4),
    order=st.permutations(range(4)),
    many=st.integers(1, 4),
    ends=st.tuples(st.booleans(), st.booleans()),
)
def test_no_row_spans_two_tensors(
    layers: int, order: list[int], many: int, ends: tuple[bool, bool]
) -> None:
    """Tensors that an allocator put side by side stay apart: a transport refuses a row over both."""
    size, pages = 8, np.array(order[:many])
    planes = [_planes(layers, len(order), size, page_first=end) for end in ends]
    local, remote = (descriptors_of(plane, pages, 0) for plane in planes)
    found = merged(local, remote, starts=(starts_of(planes[0]), starts_of(planes[1])))
    assert _moves(*found) == _moves(local, remote)
    for page_first, rows in zip(ends, found, strict=True):
        tensor = layers * len(order) * size if page_first else len(order) * size
        begins, sizes = rows[:, 0] - 64, rows[:, 1]
        assert (begins // tensor == (begins + sizes - 1) // tensor).all()


def test_layers_of_a_page_are_one_row_where_they_share_a_tensor() -> None:
    """A page whose layers follow each other at both ends is transferred as one row."""
    planes = _planes(4, 3, 8, page_first=True)
    rows, starts = descriptors_of(planes, np.array([1]), 0), starts_of(planes)
    found = merged(rows, rows, starts=(starts, starts))
    assert [one.tolist() for one in found] == [[[96, 32, 0]]] * 2


def test_a_tensor_of_a_single_page_ends_before_the_next_one() -> None:
    """Its layers share one start, and the tensor side by side with it has its own."""
    one = _planes(4, 1, 8, page_first=True)
    beside = Plane("kv", "v", 0, 64 + 4 * 8, 32, 8)
    assert starts_of((*one, beside)).tolist() == [64, 96]
