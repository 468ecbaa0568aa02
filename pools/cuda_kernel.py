"""How a piece of a move is cut into tiles for the Triton kernel, and launched."""

from collections.abc import Iterator, Sequence
from functools import cache
from math import gcd, prod
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]

from hicache_dbg.pools.cuda_triton import move_chunks
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.plan import Move, Piece, PieceEnd

__all__ = ["PieceKernel"]

#: Host memory is served a line at a time: a program's accesses begin where lines do.
LINE_BYTES = 128
#: What one program moves at a time: of a long chunk at most, of several short chunks at least.
LONG_TILE_BYTES, SHORT_TILE_BYTES = 16 << 10, 4 << 10
#: Programs launched for each multiprocessor, to go on from tile to tile. With a quarter of them
#: copies lose two per cent of the bus; with more they gain nothing.
PROGRAMS_PER_SM = 4

_MAX_INNER = 2
_INT32_MAX = 2**31 - 1
_WORDS = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}


class PieceKernel:
    """One piece of a move, ready to be launched for any of its layers."""

    def __init__(self, move: Move, piece: Piece, device: torch.device, *, to_host: bool) -> None:
        self._tiling = tiling = _tiling_of(piece)
        table = np.concatenate([move.host, move.device, *tiling.bases])
        self._table = torch.from_numpy(table).to(device, non_blocking=True)
        self._ids = move.host.size
        self._slots = move.slots
        self._programs = PROGRAMS_PER_SM * _multiprocessors(device)
        self._constants = {"TO_HOST": to_host, "SINGLE": move.single, **tiling.constants}

    def launch(self, layers: Sequence[int]) -> None:
        """Queue the copy of all ids of ``layers`` on the current stream."""
        launch: Any = move_chunks
        tiling = self._tiling
        per_layer = self._ids * prod(tiling.counts)
        for first, count in _ranges(layers, max(1, _INT32_MAX // (per_layer * tiling.parts))):
            items = count * per_layer
            tiles = -(-items // tiling.rows) * tiling.parts
            launch[(min(tiles, self._programs),)](
                self._table,
                self._ids,
                tiling.bases[0].size,
                first,
                self._slots,
                *tiling.steps,
                *tiling.counts,
                items,
                tiling.units,
                tiling.parts,
                tiles,
                **self._constants,
            )


class _Tiling:
    """What of a launch follows from the piece alone.

    A lane moves a *unit* at a time, the widest that divides every address and the chunk. A tile
    is some columns of units of some rows of chunks. Where host chunks do not begin at lines, a
    row is shifted so that its accesses do, and reaches a little further.
    """

    def __init__(self, piece: Piece) -> None:
        if len(piece.counts) > _MAX_INNER:
            raise ValueError(f"{piece.component}: {len(piece.counts)} inner axes, at most 2")
        self.bases = (_bases(piece.host), _bases(piece.device))
        self.counts = (*piece.counts, 1, 1)[:_MAX_INNER]
        host = _steps(piece.host)
        self.steps = (*host, *_steps(piece.device))
        starts = [base.tolist() for base in self.bases]
        unit = gcd(piece.chunk, 16, *self.steps, *starts[0], *starts[1])
        aligned = gcd(LINE_BYTES, *host, *starts[0]) == LINE_BYTES
        self.units = piece.chunk // unit
        reach = self.units + (0 if aligned else LINE_BYTES // unit - 1)
        columns = min(LONG_TILE_BYTES // unit, 1 << (reach - 1).bit_length())
        self.parts = -(-reach // columns)
        self.rows = max(1, SHORT_TILE_BYTES // unit // columns)
        word = min(unit, 8)
        self.constants = {
            "WORD": _WORDS[word],
            "WORD_BYTES": word,
            "VEC": unit // word,
            "LINE": 0 if aligned else LINE_BYTES,
            "ROWS": self.rows,
            "COLS": columns,
            "num_warps": 4 if columns * unit > SHORT_TILE_BYTES else 2,
        }


_tilings: WeakKeyDictionary[Piece, _Tiling] = WeakKeyDictionary()


def _tiling_of(piece: Piece) -> _Tiling:
    found = _tilings.get(piece)
    if found is None:
        found = _tilings[piece] = _Tiling(piece)
    return found


@cache
def _multiprocessors(device: torch.device) -> int:
    properties = torch.cuda.get_device_properties(device)
    return int(properties.multi_processor_count)


def _bases(end: PieceEnd) -> Ids:
    """Address of the first chunk of each layer at one end."""
    return np.array([end.address(layer) for layer in range(end.buffer.layers)], dtype=np.int64)


def _steps(end: PieceEnd) -> tuple[int, ...]:
    """Bytes from one page, slot and inner place to the next."""
    return (end.page, end.slot, *(*end.inner, 0, 0)[:_MAX_INNER])


def _ranges(layers: Sequence[int], longest: int) -> Iterator[tuple[int, int]]:
    """Runs of consecutive layers, as first and count: each is one launch."""
    first = count = 0
    for layer in layers:
        if count and layer == first + count and count < longest:
            count += 1
            continue
        if count:
            yield first, count
        first, count = layer, 1
    if count:
        yield first, count
