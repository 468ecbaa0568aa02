"""How the GPU kernels read a slot range of a view: which kernel, in which unit, from where."""

from dataclasses import dataclass, replace
from math import gcd
from typing import Any, Self

from hicache_dbg.tracer.digest.boxes import boxes_of
from hicache_dbg.tracer.digest.xxh3 import LONGEST_SHORT, STRIPE_BYTES
from hicache_dbg.tracer.view import Run, View

__all__ = ["Kernel", "Reading", "reading_of"]

#: (Longest tile, tiles to a program): what reads fastest on an H200.
_SHAPES = ((6144, 4), (1 << 31, 1))
#: Tiles to a program, one to a thread, of at most :data:`LONGEST_SHORT` bytes.
_SHORT_TILES = 128


@dataclass(frozen=True, slots=True)
class Kernel:
    """The parameters the kernel is compiled for.

    ``tiles``: to a program, of ``warps`` warps. ``constants``: see
    :func:`hicache_dbg.tracer.digest.kernels.tiles`.
    """

    tiles: int
    warps: int
    constants: tuple[tuple[str, Any], ...]

    def settling(self, together: int) -> Self:
        """Return the same kernel rolling up ``together`` layers at a time; 0 for one that settles nothing."""
        return replace(self, constants=(*self.constants, ("TOGETHER", together)))


@dataclass(frozen=True, slots=True)
class Reading:
    """A kernel and the run-time values of a slot range."""

    kernel: Kernel
    offset: int
    first: int
    slots: int
    size: int


def reading_of(
    view: View, first: int = 0, last: int | None = None, *, loops: bool = False
) -> Reading:
    """Return how to read slots ``first .. last - 1`` (default: all) of a tile.

    With ``loops``, a launch may have fewer programs than the tiles need: each then takes several. All
    ranges short of a whole page share one long and one short kernel, so that partly filled pages compile
    nothing new.

    Raises:
        ValueError: If the range is empty or lies outside the page, or the tile is 2 GiB or longer.
    """
    boxes = boxes_of(view, first, last)
    size = sum(box.bytes for box in boxes)
    if (end := max(box.end for box in boxes)) >= 1 << 31:
        raise ValueError(
            f"{view.pool}.{view.component}: a page reaches {end} bytes past its base: "
            f"expected less than 2 GiB"
        )
    slots = (view.slots_per_page if last is None else last) - first
    whole = slots == view.slots_per_page
    in_one_piece = len(boxes) == 1 and boxes[0].is_piece()
    runs = () if in_one_piece else tuple(_with_joined_rows(run) for run in view.runs)
    offset = boxes[0].offset if in_one_piece else 0
    # Of a range in one piece, the start of any slot: all ranges share a kernel.
    begins = offset if whole else gcd(view.runs[0].offset, view.runs[0].slot_stride)
    aligned = _alignment(view, runs, begins)
    kernel = _kernel(runs, aligned, size, whole=whole, loops=loops)
    return Reading(kernel, offset, first, slots, size)


def _kernel(
    runs: tuple[tuple[int, ...], ...], aligned: int, size: int, *, whole: bool, loops: bool
) -> Kernel:
    short = size <= LONGEST_SHORT
    fixed = size if whole and not short else 0
    striped = all(run[2] % STRIPE_BYTES == 0 for run in runs)
    # Sixteen bytes at once only if they are known to be contiguous.
    unit = 0 if short else aligned if striped else gcd(aligned, 8)
    constants = {
        "SIZE": fixed,
        "UNIT": unit,
        "TAIL_UNIT": gcd(unit, fixed),
        "STRIPED": striped,
        "RUNS": runs,
        "UNROLL": 1 if loops else 2,
        "LOOPS": loops,
    }
    tiles = next(tiles for longest, tiles in _SHAPES if (fixed or 8192) <= longest)
    # One warp keeps the sums of its tiles in registers; a short tile is one thread's work.
    tiles, warps = (_SHORT_TILES, 4) if short else (tiles, 1)
    return Kernel(tiles, warps, tuple(constants.items()))


def _alignment(view: View, runs: tuple[tuple[int, ...], ...], offset: int) -> int:
    """Return the greatest power of two, at most 16, that divides every row's address."""
    values = [16, *view.bases, view.page_stride, offset]
    for start, slot_stride, row_bytes, _, row_stride in runs:
        values += [start, slot_stride, row_bytes, row_stride]
    return gcd(*values)


def _with_joined_rows(run: Run) -> tuple[int, int, int, int, int]:
    if run.rows == 1 or run.row_stride == run.row_bytes:
        return (run.offset, run.slot_stride, run.slot_bytes, 1, 0)
    return (run.offset, run.slot_stride, run.row_bytes, run.rows, run.row_stride)
