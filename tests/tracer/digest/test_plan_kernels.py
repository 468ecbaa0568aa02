"""What a kernel is compiled for follows from the tile: its size, its pieces, and where they begin."""

import pytest
from hypothesis import given
from tests.tracer.digest.geometry import Tiles, tiles

from hicache_dbg.tracer.digest.plan import Kernel, Reading, reading_of
from hicache_dbg.tracer.digest.xxh3 import LONGEST_SHORT, STRIPE_BYTES
from hicache_dbg.tracer.view import Run, View


def paged(*runs: Run, slots: int = 4, stride: int = 1 << 20, base: int = 1 << 24) -> View:
    """Return a view of one layer of three pages that nothing reads."""
    return View(
        *("p", "kv", "device", "layer_first", "uint8", 1, (base,), stride, stride, 3, slots),
        runs=runs,
    )


def constants(reading: Reading) -> dict[str, object]:
    """Return what the kernel of a reading is compiled with."""
    return dict(reading.kernel.constants)


def test_a_tile_in_one_piece_is_read_sixteen_bytes_at_once() -> None:
    """Its size is compiled in, and its kernel has every constant by name and in order."""
    reading = reading_of(paged(Run(64, 512, 512)))
    assert reading == Reading(
        Kernel(
            tiles=4,
            warps=1,
            constants=(
                *(("SIZE", 2048), ("UNIT", 16), ("TAIL_UNIT", 16), ("STRIPED", True)),
                *(("RUNS", ()), ("UNROLL", 2), ("LOOPS", False)),
            ),
        ),
        offset=64,
        first=0,
        slots=4,
        size=2048,
    )


def test_a_range_of_slots_has_its_size_and_place_at_run_time() -> None:
    """The kernel is told no size, so that every range shares it."""
    reading = reading_of(paged(Run(64, 512, 512)), 1, 3)
    assert (reading.offset, reading.first, reading.slots, reading.size) == (576, 1, 2, 1024)
    assert constants(reading)["SIZE"] == 0
    assert reading.kernel == reading_of(paged(Run(64, 512, 512)), 2).kernel


def test_rows_in_pieces_are_told_with_their_strides() -> None:
    """Rows that lie close are one; what lies apart keeps its stride, and begins at no offset."""
    close, apart = Run(0, 512, 64, 4, 64), Run(2048, 512, 64, 4, 128)
    reading = reading_of(paged(close, apart))
    assert constants(reading)["RUNS"] == ((0, 512, 256, 1, 0), (2048, 512, 64, 4, 128))
    assert (reading.offset, reading.size) == (0, 2 * 4 * 256)


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        (LONGEST_SHORT, (128, 4)),
        (LONGEST_SHORT + 1, (4, 1)),
        (6144, (4, 1)),
        (6145, (1, 1)),
        (1 << 30, (1, 1)),
    ],
)
def test_short_tiles_share_a_program_and_long_ones_have_one_each(
    size: int, shape: tuple[int, int]
) -> None:
    """One thread reads a short tile byte by byte; a warp holds the sums of four, or of one."""
    kernel = reading_of(paged(Run(0, size, size), slots=1, stride=1 << 30)).kernel
    assert (kernel.tiles, kernel.warps) == shape
    short = size <= LONGEST_SHORT
    assert (dict(kernel.constants)["UNIT"] == 0) == short
    assert dict(kernel.constants)["SIZE"] == (0 if short else size)


def test_a_partly_filled_page_of_any_length_is_taken_for_a_long_one() -> None:
    """How long it will be is not known when its kernel is compiled: one tile a program."""
    kernel = reading_of(paged(Run(0, 256, 256)), 0, 2).kernel
    assert (kernel.tiles, kernel.warps) == (1, 1)
    kernel = reading_of(paged(Run(0, 64, 64)), 0, 2).kernel
    assert (kernel.tiles, kernel.warps) == (128, 4)


def test_a_launch_of_few_programs_unrolls_nothing() -> None:
    """A program that takes several tiles in turn is another kernel."""
    view = paged(Run(0, 512, 512))
    assert constants(reading_of(view, loops=True)) == {
        **constants(reading_of(view)),
        "UNROLL": 1,
        "LOOPS": True,
    }


@pytest.mark.parametrize("together", [0, 4])
def test_a_kernel_that_settles_is_the_same_one_otherwise(together: int) -> None:
    """How many layers it rolls up together comes last."""
    kernel = reading_of(paged(Run(0, 512, 512))).kernel
    settling = kernel.settling(together)
    assert settling.constants == (*kernel.constants, ("TOGETHER", together))
    assert (settling.tiles, settling.warps) == (kernel.tiles, kernel.warps)


@pytest.mark.parametrize(
    ("run", "unit"),
    [
        (Run(0, 512, 64, 2, 128), 16),  # no stripe crosses rows
        (Run(0, 512, 96, 2, 128), 8),  # one does, and sixteen bytes with it
        (Run(0, 512, 104, 2, 128), 8),
        (Run(0, 512, 100, 2, 128), 4),  # where a row ends
        (Run(0, 512, 96, 2, 100), 4),  # where the second row begins
        (Run(0, 500, 96, 2, 128), 4),  # where the second slot begins
        (Run(2, 512, 96, 2, 128), 2),  # where the first one does
        (Run(0, 512, 96, 1, 4), 8),  # a stride that is not walked
    ],
)
def test_the_unit_of_rows_in_pieces(run: Run, unit: int) -> None:
    """It divides every start and length, and is at most eight bytes if a stripe may cross rows."""
    told = constants(reading_of(paged(run)))
    assert told["UNIT"] == told["TAIL_UNIT"] == unit
    assert told["STRIPED"] is (run.row_bytes % STRIPE_BYTES == 0)


@pytest.mark.parametrize(
    ("place", "unit"),
    [
        ({"base": (1 << 24) + 8}, 8),
        ({"stride": (1 << 20) + 4}, 4),
        ({"slots": 1}, 16),
    ],
)
def test_the_unit_of_a_whole_page_in_one_piece(place: dict[str, int], unit: int) -> None:
    """Base, page stride and its own offset count, and the size of a slot does not."""
    told = constants(reading_of(paged(Run(32, 301, 301), **place)))
    assert told["UNIT"] == unit
    assert told["RUNS"] == ()


def test_the_last_stripe_may_begin_at_any_byte() -> None:
    """It ends with the tile, so its unit divides the size too."""
    told = constants(reading_of(paged(Run(0, 301, 301))))
    assert (told["SIZE"], told["UNIT"], told["TAIL_UNIT"]) == (1204, 16, 4)


@given(tiles())
def test_no_stripe_crosses_pieces_where_the_kernel_is_told_that_none_does(case: Tiles) -> None:
    """And sixteen bytes are loaded at once only there, or in one piece."""
    reading = reading_of(case.view, case.first, case.last)
    told = constants(reading)
    pieces = [size for _, size in case.view.segments(case.first, case.last)]
    if told["STRIPED"] and told["RUNS"]:
        assert all(size % STRIPE_BYTES == 0 for size in pieces)
    if told["UNIT"] == 16:
        assert told["STRIPED"]
    assert reading.size == sum(pieces)
    assert (told["UNIT"] == 0) == (reading.size <= LONGEST_SHORT)
    if not told["RUNS"]:
        assert (len(pieces), pieces[0]) == (1, reading.size)
        assert reading.offset == case.view.segments(case.first, case.last)[0][0]


@pytest.mark.parametrize("short_of", [0, 1])
@pytest.mark.parametrize(
    "runs", [(Run(0, 1, 1),), (Run(0, 128, 64), Run(1 << 20, 64, 64))], ids=["one", "two"]
)
def test_a_page_that_reaches_two_gib_is_refused(runs: tuple[Run, ...], short_of: int) -> None:
    """Offsets in a page are 32-bit numbers on the device; a byte less is read."""
    *before, last = runs
    moved = Run((1 << 31) - short_of - 4 * last.slot_stride, last.slot_stride, last.row_bytes)
    view = paged(*before, moved, stride=1 << 32)
    if short_of:
        assert reading_of(view).slots == 4
    else:
        with pytest.raises(ValueError, match=f"p.kv: a page reaches {1 << 31} bytes past its base"):
            reading_of(view)
