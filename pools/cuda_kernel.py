"""How a piece of a move is cut into tiles for the Triton kernel, and launched."""

from collections.abc import Iterator, Sequence
from functools import cache
from math import gcd, prod
from typing import Any

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
LONG_TILE_BYTES, SHORT_TILE_BYTES = 16 << 10, 2 << 10
#: Programs launched for each multiprocessor, to go on from tile to tile. With a quarter of them
#: copies lose two per cent of the bus; with more they gain nothing.
PROGRAMS_PER_SM = 4

_MAX_INNER = 2
_INT32_MAX = 2**31 - 1
_WORDS = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}


class PieceKernel:
    """One piece of a move, ready to be launched for any of its layers."""

    def __init__(self, move: Move, piece: Piece, device: torch.device, *, to_host: bool) -> None:
        if len(piece.counts) > _MAX_INNER:
            raise ValueError(f"{piece.component}: {len(piece.counts)} inner axes, at most 2")
        host, on_device = _bases(piece.host), _bases(piece.device)
        self._table = _upload([move.host, move.device, host, on_device], device)
        self._programs = PROGRAMS_PER_SM * _multiprocessors(device)
        self._ids = move.host.size
        self._host_layers = host.size
        self._slots = move.slots
        self._counts = (*piece.counts, 1, 1)[:_MAX_INNER]
        self._per_layer = self._ids * prod(self._counts)
        steps = [
            (end.page, end.slot, *(*end.inner, 0, 0)[:_MAX_INNER])
            for end in (piece.host, piece.device)
        ]
        self._steps = (*steps[0], *steps[1])
        unit = gcd(piece.chunk, 16, *self._steps, *host.tolist(), *on_device.tolist())
        aligned = gcd(LINE_BYTES, *steps[0], *host.tolist()) == LINE_BYTES
        self._units = piece.chunk // unit
        reach = self._units + (0 if aligned else LINE_BYTES // unit - 1)
        columns = min(LONG_TILE_BYTES // unit, 1 << (reach - 1).bit_length())
        self._parts = -(-reach // columns)
        self._rows = max(1, SHORT_TILE_BYTES // unit // columns)
        self._constants = {
            "TO_HOST": to_host,
            "SINGLE": move.single,
            "WORD": _WORDS[min(unit, 8)],
            "WORD_BYTES": min(unit, 8),
            "VEC": unit // min(unit, 8),
            "LINE": 0 if aligned else LINE_BYTES,
            "ROWS": self._rows,
            "COLS": columns,
            "num_warps": 4 if columns * unit > SHORT_TILE_BYTES else 2,
        }

    def launch(self, layers: Sequence[int]) -> None:
        """Queue the copy of all ids of ``layers`` on the current stream."""
        launch: Any = move_chunks
        for first, count in _ranges(layers, max(1, _INT32_MAX // (self._per_layer * self._parts))):
            items = count * self._per_layer
            tiles = -(-items // self._rows) * self._parts
            launch[(min(tiles, self._programs),)](
                self._table,
                self._ids,
                self._host_layers,
                first,
                self._slots,
                *self._steps,
                *self._counts,
                items,
                self._units,
                self._parts,
                tiles,
                **self._constants,
            )


def _upload(parts: Sequence[Ids], device: torch.device) -> torch.Tensor:
    """Put ``parts`` one after the other on the device, in the order of the current stream."""
    size = sum(part.size for part in parts)
    staged = torch.empty(size, dtype=torch.int64, pin_memory=device.type == "cuda")
    np.concatenate(parts, out=staged.numpy())
    return staged.to(device, non_blocking=True)


@cache
def _multiprocessors(device: torch.device) -> int:
    properties = torch.cuda.get_device_properties(device)
    return int(properties.multi_processor_count)


def _bases(end: PieceEnd) -> Ids:
    """Address of the first chunk of each layer at one end."""
    return np.array([end.address(layer) for layer in range(end.buffer.layers)], dtype=np.int64)


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
