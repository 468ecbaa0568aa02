"""XXH3-64 of tiles in host memory through the xxhash package; contiguous tiles are not copied.

This is single-threaded on purpose: the package keeps the GIL for inputs under 100 kB, so a second
thread would only take turns with the first.
"""

import ctypes
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from hicache_dbg.tracer.digest.boxes import Box, boxes_of, check_tiles, extent_of
from hicache_dbg.tracer.digest.unlocked import WORTH_UNLOCKING, unlocked
from hicache_dbg.tracer.view import View

__all__ = ["CpuDigester"]

#: Non-contiguous tiles are gathered about this many bytes at a time, so that hashing hits the cache.
_BATCH_BYTES = 1 << 20
#: This many tiles or more are read in address order, which is up to twice as fast.
_WORTH_SORTING = 1024

#: Bytes a second; digests slower than this are waiting for the GIL, not for memory.
_SLOWEST = 1e9

_xxh3: Callable[[Any], bytes] = xxhash.xxh3_64_digest


class CpuDigester:
    """Digests tiles in memory that the CPU can read.

    Memory is read in place through the view's addresses; the caller keeps ``view.owner`` alive
    meanwhile. Contiguous tiles are hashed where they are, others are gathered a batch of pages at a
    time.

    Args:
        beside: Set on a thread that the engine does not wait for; it then releases the GIL while it
            hashes tiles of 32 KB or more.
    """

    def __init__(self, *, beside: bool = False) -> None:
        self._beside = beside

    def digest(
        self,
        view: View,
        layers: Sequence[int],
        pages: npt.NDArray[np.int64],
        first: int = 0,
        last: int | None = None,
    ) -> npt.NDArray[np.uint64]:
        """Return XXH3-64 (seed 0) of slots ``first .. last - 1`` of each tile, uint64 [layers, pages].

        Args:
            view: Where the tiles are; on the CPU.
            layers: Indices into ``view.bases``.
            pages: Page indices, int64, one dimension, in any order, repeats allowed.
            first: The first slot to digest.
            last: The slot after the last one; the end of the page if left out.

        Raises:
            ValueError: If the view is on another device, or ``first..last`` is no range of slots.
            IndexError: If a layer or a page lies outside the view.
        """
        if view.device != "cpu":
            raise ValueError(
                f"{view.pool}.{view.component}: the CPU cannot read tiles on {view.device}: "
                f"expected a view on cpu"
            )
        pages = np.asarray(pages, np.int64)
        boxes = boxes_of(view, first, last)
        check_tiles(view, layers, pages)
        if len(layers) * len(pages) < _WORTH_SORTING:
            return _digests(view, layers, pages, boxes, beside=self._beside)
        order = np.argsort(pages)
        out = np.empty((len(layers), len(pages)), np.uint64)
        out[:, order] = _digests(view, layers, pages[order], boxes, beside=self._beside)
        return out


def _digests(
    view: View,
    layers: Sequence[int],
    pages: npt.NDArray[np.int64],
    boxes: Sequence[Box],
    *,
    beside: bool,
) -> npt.NDArray[np.uint64]:
    if len(boxes) == 1 and boxes[0].is_piece():
        offsets = (pages * view.page_stride + boxes[0].offset).tolist()
        return _in_place(view, layers, offsets, boxes[0].row_bytes, beside=beside)
    out = np.empty((len(layers), len(pages)), np.uint64)
    _gathered(view, _memory_of(view, layers), boxes, pages, out)
    return out


def _in_place(
    view: View, layers: Sequence[int], offsets: list[int], size: int, *, beside: bool
) -> npt.NDArray[np.uint64]:
    """Return digests of ``size`` bytes at each offset of each layer.

    With ``beside`` other threads run meanwhile. If they hold on to the GIL, so that each tile would
    wait for it again, the remaining layers are hashed without releasing it.
    """
    out = np.empty((len(layers), len(offsets)), np.uint64)
    at_address = unlocked() if beside and size >= WORTH_UNLOCKING else None
    for row, layer, source in zip(out, layers, _memory_of(view, layers), strict=True):
        if at_address is None:
            row[:] = _numbers([_xxh3(source[at : at + size]) for at in offsets])
            continue
        base, began = view.bases[layer], time.perf_counter()
        row[:] = [at_address(base + at, size) for at in offsets]
        if time.perf_counter() - began > len(offsets) * size / _SLOWEST:
            at_address = None
    return out


def _memory_of(view: View, layers: Sequence[int]) -> list[memoryview]:
    """Return each layer's memory, up to the end of its last payload byte."""
    length = extent_of(view)
    return [_memory(view.bases[layer], length) for layer in layers]


def _numbers(digests: list[bytes]) -> npt.NDArray[Any]:
    """Convert digests in the package's big-endian bytes; faster than a list of integers."""
    return np.frombuffer(b"".join(digests), ">u8")


def _gathered(
    view: View,
    memory: Sequence[memoryview],
    boxes: Sequence[Box],
    pages: npt.NDArray[np.int64],
    out: npt.NDArray[np.uint64],
) -> None:
    """Fill ``out`` batch by batch, all layers of a batch in turn: interleaved layers share cache lines."""
    sources = [[_pieces(source, view, box) for box in boxes] for source in memory]
    tile = sum(box.bytes for box in boxes)
    batch = max(1, _BATCH_BYTES // (tile * max(1, len(memory))))
    for start in range(0, len(pages), batch):
        chosen = pages[start : start + batch]
        for row, parts in zip(out, sources, strict=True):
            # Indexing keeps the source's axis order; in a tile, slots are the outer axis and rows the inner.
            rows = [np.ascontiguousarray(part[chosen]) for part in parts]
            gathered = [part.view(np.uint8).reshape(len(chosen), -1) for part in rows]
            tiles = gathered[0] if len(gathered) == 1 else np.concatenate(gathered, axis=1)
            row[start : start + batch] = _numbers([_xxh3(tile_bytes) for tile_bytes in tiles])


def _pieces(memory: memoryview, view: View, box: Box) -> npt.NDArray[np.void]:
    """View the box in every page, as an array [pages, slots, rows] of opaque rows."""
    return np.ndarray(
        (view.pages, box.slots, box.rows),
        np.dtype((np.void, box.row_bytes)),
        buffer=memory,
        offset=box.offset,
        strides=(view.page_stride, box.slot_stride, box.row_stride),
    )


@lru_cache(maxsize=4096)
def _memory(address: int, length: int) -> memoryview:
    """Wrap ``length`` bytes at ``address``. The view's owner keeps them alive."""
    array: Any = (ctypes.c_ubyte * length).from_address(address)
    return memoryview(array)
