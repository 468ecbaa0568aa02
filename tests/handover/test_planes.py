"""Rows of a transfer: however they are merged, the same bytes go to the same places."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.pools.handover.planes import Descriptors, merged


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
    ours, theirs = merged(local, remote)
    assert _moves(ours, theirs) == _moves(local, remote)
    ends = [rows[:-1, 0] + rows[:-1, 1] == rows[1:, 0] for rows in (ours, theirs)]
    assert not (ends[0] & ends[1]).any()


def test_rows_of_two_devices_stay_apart() -> None:
    """Consecutive addresses mean nothing across devices."""
    local = np.array([[0, 8, 0], [8, 8, 1]], np.uint64)
    assert [len(rows) for rows in merged(local, local)] == [2, 2]


def test_consecutive_pages_are_one_row_a_plane() -> None:
    """Pages allocated together are transferred as one row per plane."""
    local, remote = _rows(range(3, 9), 64, 0), _rows(range(20, 26), 64, 0)
    ours, theirs = merged(local, remote)
    assert (ours.tolist(), theirs.tolist()) == ([[192, 384, 0]], [[1280, 384, 0]])
