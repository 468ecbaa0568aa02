"""How the GPU kernels read a slot range of a view: which kernel, in which unit, from where."""

from dataclasses import dataclass, replace
from math import gcd
from typing import Any, Literal, Self

from hicache_dbg.tracer.digest.boxes import boxes_of
from hicache_dbg.tracer.digest.xxh3 import LONGEST_SHORT, STRIPE_BYTES
from hicache_dbg.tracer.view import Run, View

__all__ = ["Kernel", "Pace", "Reading", "reading_of"]

#: What a launch is optimised for: reading many tiles fast, finishing a few that are ``awaited``, or
#: being ``gentle`` to copies beside it, to which it leaves the L2 cache.
Pace = Literal["fast", "awaited", "gentle"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """The parameters a kernel is compiled for."""

    short: bool
    tiles: int
    """Tiles to a program."""
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
    view: View, first: int = 0, last: int | None = None, *, pace: Pace = "fast"
) -> Reading:
    """Return how to read slots ``first .. last - 1`` (default: all) of a tile.

    All ranges short of a whole page share one long and one short kernel, so that partly filled pages
    compile nothing new.

    Raises:
        ValueError: If the range is empty or lies outside the page, or the tile is 2 GiB or longer.
    """
    boxes = boxes_of(view, first, last)
    size = sum(box.bytes for box in boxes)
    if max(box.end for box in boxes) >= 1 << 31:
        raise ValueError(
            f"{view.pool}.{view.component}: a page reaches {boxes[-1].end} bytes past its base: "
            f"expected less than 2 GiB"
        )
    slots = (view.slots_per_page if last is None else last) - first
    whole = slots == view.slots_per_page
    in_one_piece = len(boxes) == 1 and boxes[0].is_piece()
    runs = () if in_one_piece else tuple(_with_joined_rows(run) for run in view.runs)
    offset = boxes[0].offset if in_one_piece else 0
    if size <= LONGEST_SHORT:
        constants = (("RUNS", runs), ("LOOPS", pace == "gentle"))
        kernel = Kernel(short=True, tiles=_SHORT_TILES, warps=4, constants=constants)
    else:
        fixed = size if whole else 0
        aligned = _alignment(view, runs, offset if whole else view.slot_bytes)
        kernel = _long(runs, aligned, size, fixed, pace)
    return Reading(kernel, offset, first, slots, size)


_SHORT_TILES = 128

#: (Longest tile, tiles per program, blocks loaded at a time): what reads fastest on an H200.
_SHAPES = ((2048, 8, 1), (6144, 4, 1), (24576, 2, 3), (1 << 31, 1, 3))
#: The same for tiles that are long, few and awaited: low latency for each one.
_AWAITED_SHAPE = (1, 6)


def _long(
    runs: tuple[tuple[int, ...], ...], aligned: int, size: int, fixed: int, pace: Pace
) -> Kernel:
    striped = all(run[2] % STRIPE_BYTES == 0 for run in runs)
    # Sixteen bytes at once only if they are known to be contiguous.
    unit = aligned if striped else gcd(aligned, 8)
    # One warp per program keeps its tiles' sums in registers.
    _, tiles, stages = next(shape for shape in _SHAPES if (fixed or 8192) <= shape[0])
    if pace == "awaited" and stages > 1:
        tiles, stages = _AWAITED_SHAPE
    elif pace == "gentle" and stages > 1:
        stages = 0
    constants = {
        "STAGES": stages,
        "SIZE": fixed,
        "UNIT": unit,
        "TAIL_UNIT": gcd(unit, size) if fixed else unit,
        "STRIPED": striped,
        "RUNS": runs,
        "LOOPS": pace == "gentle",
    }
    return Kernel(short=False, tiles=tiles, warps=1, constants=tuple(constants.items()))


def _alignment(view: View, runs: tuple[tuple[int, ...], ...], offset: int) -> int:
    """Return the greatest power of two, at most 16, that divides every row's address."""
    values = [16, *view.bases, view.page_stride, offset]
    for start, slot_stride, row_bytes, rows, row_stride in runs:
        values += [start, slot_stride, row_bytes, row_stride if rows > 1 else 0]
    return gcd(*values)


def _with_joined_rows(run: Run) -> tuple[int, int, int, int, int]:
    if run.rows == 1 or run.row_stride == run.row_bytes:
        return (run.offset, run.slot_stride, run.slot_bytes, 1, 0)
    return (run.offset, run.slot_stride, run.row_bytes, run.rows, run.row_stride)
