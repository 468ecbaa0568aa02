"""The boxes of a tile: as few as its pieces allow, and none that reaches beyond them."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from tests.tracer.digest.geometry import Tiles, tiles

from hicache_dbg.tracer.digest.boxes import Box, boxes_of, check_tiles, extent_of
from hicache_dbg.tracer.view import Run, View


@given(tiles())
def test_a_box_ends_where_its_last_piece_ends(case: Tiles) -> None:
    """Its bytes are those of its pieces, and all boxes together are the tile's."""
    boxes = boxes_of(case.view, case.first, case.last)
    segments = case.view.segments(case.first, case.last)
    assert sum(box.bytes for box in boxes) == sum(size for _, size in segments)
    assert max(box.end for box in boxes) == max(at + size for at, size in segments)
    assert min(box.offset for box in boxes) == min(at for at, _ in segments)


@given(tiles())
def test_a_tile_in_one_piece_is_one_box(case: Tiles) -> None:
    """However many runs, slots and rows it was declared with; and no other tile is."""
    boxes = boxes_of(case.view, case.first, case.last)
    segments = case.view.segments(case.first, case.last)
    assert ([box.is_piece() for box in boxes] == [True]) == (len(segments) == 1)
    if len(segments) == 1:
        ((at, size),) = segments
        assert boxes == (Box(at, 1, 0, 1, 0, size),)


@given(tiles())
def test_no_box_follows_a_piece_that_it_continues(case: Tiles) -> None:
    """Two pieces in a row that touch are one, and there is at most a box a run."""
    boxes = boxes_of(case.view, case.first, case.last)
    assert len(boxes) <= len(case.view.runs)
    for one, following in itertools.pairwise(boxes):
        pieces = one.is_piece() and following.is_piece()
        assert not (pieces and one.end == following.offset)


@given(tiles())
def test_the_extent_of_a_layer_ends_with_its_last_byte(case: Tiles) -> None:
    """Not with the padding behind it, which need not be there."""
    view = case.view
    last = max(at + size for at, size in view.segments())
    assert extent_of(view) == (view.pages - 1) * view.page_stride + last


def paged(*runs: Run) -> View:
    """Return a view of three pages of four slots that nothing reads."""
    return View(
        *("p", "kv", "host", "page_first", "uint8", 1, (64, 128), 4096, 4096, 3, 4), runs=runs
    )


@pytest.mark.parametrize(
    ("run", "box"),
    [
        (Run(8, 100, 30, 3, 30), Box(8, 4, 100, 1, 30, 90)),  # rows that touch
        (Run(8, 100, 30, 2, 30), Box(8, 4, 100, 1, 30, 60)),  # two are enough
        (Run(8, 100, 30, 3, 32), Box(8, 4, 100, 3, 32, 30)),  # rows apart
        (Run(8, 90, 30, 3, 30), Box(8, 1, 0, 1, 0, 360)),  # all touch
        (Run(8, 30, 30, 1, 0), Box(8, 1, 0, 1, 0, 120)),  # a row a slot
        (Run(8, 32, 30, 1, 0), Box(8, 4, 32, 1, 0, 30)),
    ],
)
def test_a_run_is_one_box_of_as_few_pieces_as_can_be(run: Run, box: Box) -> None:
    """Rows are joined first, then slots."""
    assert boxes_of(paged(run)) == (box,)


def test_one_slot_of_touching_rows_is_a_piece() -> None:
    """Its stride leads nowhere."""
    assert boxes_of(paged(Run(8, 100, 30, 3, 30)), 2, 3) == (Box(208, 1, 0, 1, 0, 90),)


def test_runs_that_touch_are_one_piece_if_both_are_pieces() -> None:
    """Slots with gaps between them do not swallow the gaps, on whichever side they lie."""
    gaps, piece = Run(0, 32, 30), Run(126, 30, 30)
    assert [(box.offset, box.end) for box in boxes_of(paged(gaps, piece))] == [(0, 126), (126, 246)]
    before = Run(0, 30, 30)
    assert len(boxes_of(paged(before, Run(120, 32, 30)))) == 2
    assert boxes_of(paged(before, Run(120, 30, 30))) == (Box(0, 1, 0, 1, 0, 240),)
    three = paged(before, Run(120, 30, 30), Run(240, 1, 1))
    assert boxes_of(three) == (Box(0, 1, 0, 1, 0, 244),)


def test_a_piece_behind_a_gap_or_before_the_other_stays_apart() -> None:
    """Tile order is the runs' order, not that of their addresses."""
    apart = boxes_of(paged(Run(0, 30, 30), Run(128, 30, 30)))
    assert [(box.offset, box.end) for box in apart] == [(0, 120), (128, 248)]
    turned = boxes_of(paged(Run(120, 30, 30), Run(0, 30, 30)))
    assert [(box.offset, box.end) for box in turned] == [(120, 240), (0, 120)]


def test_what_a_view_has_is_checked_to_the_last_layer_and_page() -> None:
    """The last of each is there, and the next is not."""
    view = paged(Run(0, 30, 30))
    check_tiles(view, (0, 1), np.array([0, 2]))
    with pytest.raises(IndexError, match="layer 2 is outside"):
        check_tiles(view, (2,), np.array([0]))
    with pytest.raises(IndexError, match="page 3 is outside the host view's 3 pages"):
        check_tiles(view, (0,), np.array([3]))
