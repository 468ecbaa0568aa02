"""A slot range of a tile as a few regular boxes of bytes, with adjacent pieces merged.

Both digesters walk boxes rather than runs: a contiguous tile is one box of one row, whatever runs it
was declared with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hicache_dbg.tracer.view import Run, View

__all__ = ["Box", "boxes_of", "check_tiles", "extent_of"]


@dataclass(frozen=True, slots=True)
class Box:
    """``slots`` x ``rows`` pieces of ``row_bytes`` bytes, slot by slot; offset and strides in bytes."""

    offset: int
    slots: int
    slot_stride: int
    rows: int
    row_stride: int
    row_bytes: int

    @property
    def bytes(self) -> int:
        """Return the box's payload bytes."""
        return self.slots * self.rows * self.row_bytes

    @property
    def end(self) -> int:
        """Return where the last piece ends, relative to the page's base."""
        last = (self.slots - 1) * self.slot_stride + (self.rows - 1) * self.row_stride
        return self.offset + last + self.row_bytes

    def is_piece(self) -> bool:
        """Return whether the box is contiguous."""
        return self.slots == self.rows == 1


def boxes_of(view: View, first: int = 0, last: int | None = None) -> tuple[Box, ...]:
    """Return the boxes of slots ``first .. last - 1`` (default: all), in tile order.

    Raises:
        ValueError: If the range is empty or lies outside the page.
    """
    last = view.slots_per_page if last is None else last
    if not 0 <= first < last <= view.slots_per_page:
        raise ValueError(
            f"{view.pool}.{view.component}: slots {first}..{last} are no range of a page of "
            f"{view.slots_per_page} slots: expected 0 <= first < last <= slots_per_page"
        )
    return _boxes(view.runs, first, last)


def extent_of(view: View) -> int:
    """Return the bytes from a layer's base to the end of its last page's last payload byte."""
    end = max(box.end for box in boxes_of(view))
    return (view.pages - 1) * view.page_stride + end


def check_tiles(view: View, layers: Sequence[int], pages: npt.NDArray[np.int64]) -> None:
    """Check that the view has these layers and pages.

    Raises:
        ValueError: If ``pages`` is not one-dimensional.
        IndexError: If a layer or a page lies outside the view.
    """
    name = f"{view.pool}.{view.component}"
    for layer in layers:
        if not 0 <= layer < view.layers:
            raise IndexError(f"{name}: layer {layer} is outside the view's {view.layers} layers")
    if pages.ndim != 1:
        raise ValueError(f"{name}: pages have shape {pages.shape}: expected one dimension")
    outside = pages[(pages < 0) | (pages >= view.pages)]
    if outside.size:
        raise IndexError(
            f"{name}: page {outside[0]} is outside the {view.tier} view's {view.pages} pages"
        )


@lru_cache(maxsize=1024)
def _boxes(runs: tuple[Run, ...], first: int, last: int) -> tuple[Box, ...]:
    boxes: list[Box] = []
    for run in runs:
        box = _box(run, first, last)
        if boxes and boxes[-1].is_piece() and box.is_piece() and boxes[-1].end == box.offset:
            box = _piece(boxes.pop().offset, box.end)
        boxes.append(box)
    return tuple(boxes)


def _box(run: Run, first: int, last: int) -> Box:
    slots, rows, row_bytes = last - first, run.rows, run.row_bytes
    offset = run.offset + first * run.slot_stride
    if rows > 1 and run.row_stride == row_bytes:
        rows, row_bytes = 1, run.slot_bytes
    if rows == 1 and (slots == 1 or run.slot_stride == row_bytes):
        return _piece(offset, offset + slots * row_bytes)
    return Box(offset, slots, run.slot_stride, rows, run.row_stride, row_bytes)


def _piece(offset: int, end: int) -> Box:
    return Box(offset, 1, 0, 1, 0, end - offset)
