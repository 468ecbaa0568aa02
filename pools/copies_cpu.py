"""Copies between host and device pools that both live in CPU memory.

The counterparts of the CUDA backends: ``kernel`` gathers and scatters, ``direct`` copies runs of
consecutive ids one by one. Chunks are numpy void scalars: numpy moves them with plain memory copies
and releases the GIL.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.plan import Move, Piece, PieceEnd

__all__ = ["CpuCopier", "direct", "kernel"]

#: Bytes gathered at a time: small enough to stay in the CPU cache until they are scattered.
BLOCK_BYTES = 512 << 10

_Where = tuple[Ids | slice | int, ...]
_Blocks = Iterator[tuple[_Where, _Where]]
_Chunks = npt.NDArray[np.void]


class CpuCopier:
    """Moves bytes on the calling thread; a copy is complete when it returns."""

    in_flight = 0

    def __init__(self, split: Callable[[Move], _Blocks]) -> None:
        self._split = split

    def bind(self, move: Move, *, to_host: bool) -> "CpuMove":
        """Split ``move`` into blocks; no byte moves yet."""
        if not move.host.size:
            return CpuMove([], [], to_host=to_host)
        ends = [
            (
                _Reach(move, piece, piece.host, move.host),
                _Reach(move, piece, piece.device, move.device),
            )
            for piece in move.pieces
        ]
        return CpuMove(ends, list(self._split(move)), to_host=to_host)


class CpuMove:
    """A prepared move that can be executed for any of its layers."""

    #: Copies are synchronous, so there is no stream.
    stream: int | None = None

    def __init__(
        self,
        ends: "Sequence[tuple[_Reach, _Reach]]",
        blocks: Sequence[tuple[_Where, _Where]],
        *,
        to_host: bool,
    ) -> None:
        self._ends = ends
        self._blocks = blocks
        self._to_host = to_host

    def copy(self, layers: Sequence[int]) -> None:
        """Move all ids of ``layers``; the bytes are in place on return."""
        for host_end, device_end in self._ends:
            for layer in layers:
                host, device = host_end.layer(layer), device_end.layer(layer)
                for at_host, at_device in self._blocks:
                    if self._to_host:
                        host[at_host] = device[at_device]
                    else:
                        device[at_device] = host[at_host]

    def mark(self) -> Callable[[], None]:
        """Return a function that does nothing: no copy is ever in flight."""
        return _nothing_under_way


def kernel() -> CpuCopier:
    """Return a copier that gathers and scatters chunks by id, one cache-sized block at a time."""
    return CpuCopier(_blocks)


def direct() -> CpuCopier:
    """Return a copier that copies each run of ids that is consecutive at both ends."""
    return CpuCopier(_runs)


class _Reach:
    """One end of a piece as arrays of chunks, ``[page, (slot,) *counts]`` per layer.

    An array extends only as far as the largest id: where a host page is wider than the device's,
    chunks overlap and the last page of the tensor has no complete chunk.
    """

    def __init__(self, move: Move, piece: Piece, end: PieceEnd, ids: Ids) -> None:
        self._buffer = end.buffer
        self._offset = end.offset
        self._dtype = np.dtype((np.void, piece.chunk))
        if move.single:
            pages, slots = np.divmod(ids, move.slots)
            self._shape = (int(pages.max()) + 1, int(slots.max()) + 1, *piece.counts)
            self._strides = (end.page, end.slot, *end.inner)
        else:
            self._shape = (int(ids.max()) + 1, *piece.counts)
            self._strides = (end.page, *end.inner)

    def layer(self, layer: int) -> _Chunks:
        number, start = self._buffer.layer_place(layer)
        memory = self._buffer.flat(number).numpy()
        return np.ndarray(self._shape, self._dtype, memory, start + self._offset, self._strides)


def _blocks(move: Move) -> _Blocks:
    step = max(1, BLOCK_BYTES // max(piece.bytes_per_id for piece in move.pieces))
    for start in range(0, move.host.size, step):
        block = slice(start, start + step)
        yield _where(move, move.host[block]), _where(move, move.device[block])


def _where(move: Move, ids: Ids) -> _Where:
    if move.single:
        return np.divmod(ids, move.slots)
    if ids.size and (np.diff(ids) == 1).all():
        return (slice(int(ids[0]), int(ids[-1]) + 1),)  # a slice needs no gather
    return (ids,)


def _runs(move: Move) -> _Blocks:
    """Yield index pairs of the longest runs of ids that are consecutive at both ends."""
    breaks = (np.diff(move.host) != 1) | (np.diff(move.device) != 1)
    if move.single:
        breaks |= (move.host[1:] % move.slots == 0) | (move.device[1:] % move.slots == 0)
    starts = [0, *(np.flatnonzero(breaks) + 1).tolist(), move.host.size]
    for first, end in pairwise(starts):
        count = end - first
        yield (
            _span(move, int(move.host[first]), count),
            _span(move, int(move.device[first]), count),
        )


def _span(move: Move, first: int, count: int) -> _Where:
    if not move.single:
        return (slice(first, first + count),)
    page, slot = divmod(first, move.slots)
    return (page, slice(slot, slot + count))


def _nothing_under_way() -> None:
    return None
