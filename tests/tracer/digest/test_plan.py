"""What the GPU kernels are compiled for: seldom, and never a wider load than addresses allow."""

import pytest
from hypothesis import given
from tests.tracer.digest.geometry import Tiles, tiles

from hicache_dbg.tracer.digest.boxes import boxes_of
from hicache_dbg.tracer.digest.plan import reading_of
from hicache_dbg.tracer.view import Run, View


@given(tiles())
def test_boxes_are_the_views_segments(case: Tiles) -> None:
    """The boxes of a slot range hold the very bytes of the view's segments, in their order."""
    pieces: list[tuple[int, int]] = []
    for box in boxes_of(case.view, case.first, case.last):
        for slot in range(box.slots):
            for row in range(box.rows):
                at = box.offset + slot * box.slot_stride + row * box.row_stride
                if pieces and sum(pieces[-1]) == at:
                    pieces[-1] = (pieces[-1][0], pieces[-1][1] + box.row_bytes)
                else:
                    pieces.append((at, box.row_bytes))
    assert pieces == case.view.segments(case.first, case.last)


@given(tiles())
def test_loads_are_aligned(case: Tiles) -> None:
    """Every piece begins at a multiple of the unit, and so does the last stripe of the tile."""
    reading = reading_of(case.view, case.first, case.last)
    constants = dict(reading.kernel.constants)
    if not constants["UNIT"]:
        return
    for base in case.view.bases:
        for page in range(case.view.pages):
            for at, size in case.view.segments(case.first, case.last):
                start = base + page * case.view.page_stride + at
                assert start % constants["UNIT"] == 0
                assert constants["TAIL_UNIT"] == constants["UNIT"] or not constants["RUNS"]
                assert not constants["RUNS"] or size % constants["UNIT"] == 0
    assert reading.size % constants["TAIL_UNIT"] == 0


@pytest.mark.parametrize(("run", "unit"), [(Run(1, 288, 288), 1), (Run(0, 300, 288), 4)])
def test_a_slot_is_aligned_as_its_run_and_stride_are(run: Run, unit: int) -> None:
    """The size of a slot alone says nothing of where it begins."""
    view = View(
        "p", "kv", "device", "layer_first", "uint8", 1, (1 << 20,), 2048, 2048, 2, 3, (run,)
    )
    constants = dict(reading_of(view, 1, 2).kernel.constants)
    assert constants["UNIT"] == constants["TAIL_UNIT"] == unit


@given(tiles())
def test_partial_pages_compile_little(case: Tiles) -> None:
    """All slot ranges short of a page share at most one long and one short kernel a shape."""
    slots = case.view.slots_per_page
    kernels = {
        reading_of(case.view, first, last).kernel
        for first in range(slots)
        for last in range(first + 1, slots + 1)
        if last - first < slots
    }
    shapes = {dict(kernel.constants)["RUNS"] == () for kernel in kernels}
    assert len(kernels) <= 2 * len(shapes)


def test_a_page_too_long_is_refused_with_its_real_end() -> None:
    """The bytes that come last in a tile need not lie last in the page."""
    runs = Run(1 << 31, 64, 64), Run(0, 16, 16)
    place = ("p", "kv", "device", "layer_first", "uint8", 1)
    view = View(*place, (1 << 24,), 1 << 32, 1 << 32, 3, 4, runs=runs)
    with pytest.raises(ValueError, match=f"reaches {(1 << 31) + 256} bytes past its base"):
        reading_of(view)
