"""Copies between host and device pools that both live in CPU memory.

The twins of the CUDA backends: ``kernel`` gathers and scatters, ``direct`` copies one run of
consecutive ids after the other. Chunks are numpy void scalars, which numpy moves with plain
memory copies and without the interpreter's lock.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.plan import Move, Piece, PieceEnd

__all__ = ["DirectCopier", "KernelCopier"]

#: Bytes gathered at a time: they stay in the cache until they are scattered.
BLOCK_BYTES = 512 << 10

_Where = tuple[Ids | slice | int, ...]
_Blocks = Iterator[tuple[_Where, _Where]]
_Chunks = npt.NDArray[np.void]


class KernelCopier:
    """Gathers chunks by id and scatters them by id, a cache-sized block at a time."""

    in_flight = 0

    def copy(self, move: Move, layers: Sequence[int], *, to_host: bool) -> None:
        """Move all ids of ``layers``; the bytes are there on return."""
        _copy(move, layers, _blocks, to_host=to_host)

    def mark(self) -> Callable[[], None]:
        """Nothing is ever under way."""
        return _nothing


class DirectCopier:
    """Copies one run of ids that follow each other at both ends after the other."""

    in_flight = 0

    def copy(self, move: Move, layers: Sequence[int], *, to_host: bool) -> None:
        """Move all ids of ``layers``; the bytes are there on return."""
        _copy(move, layers, _runs, to_host=to_host)

    def mark(self) -> Callable[[], None]:
        """Nothing is ever under way."""
        return _nothing


def _copy(
    move: Move, layers: Sequence[int], split: Callable[[Move], _Blocks], *, to_host: bool
) -> None:
    if not move.host.size:
        return
    blocks = list(split(move))
    for piece in move.pieces:
        for layer in layers:
            host = _chunks(move, piece, piece.host, move.host, layer)
            device = _chunks(move, piece, piece.device, move.device, layer)
            for at_host, at_device in blocks:
                if to_host:
                    host[at_host] = device[at_device]
                else:
                    device[at_device] = host[at_host]


def _chunks(move: Move, piece: Piece, end: PieceEnd, ids: Ids, layer: int) -> _Chunks:
    """The chunks of one layer at one end as an array ``[page, (slot,) *counts]``."""
    number, start = end.buffer.layer_place(layer)
    # As far as the ids reach and no further: where a host page is wider than the device's, chunks
    # overlap and the last page of the tensor has none.
    pages = int(ids.max()) // move.slots + 1 if move.single else int(ids.max()) + 1
    slots = (int((ids % move.slots).max()) + 1,) if move.single else ()
    return np.ndarray(
        (pages, *slots, *piece.counts),
        dtype=np.dtype((np.void, piece.chunk)),
        buffer=end.buffer.flat(number).numpy(),
        offset=start + end.offset,
        strides=(end.page, *((end.slot,) if move.single else ()), *end.inner),
    )


def _blocks(move: Move) -> _Blocks:
    step = max(1, BLOCK_BYTES // max(piece.bytes_per_id for piece in move.pieces))
    for start in range(0, move.host.size, step):
        block = slice(start, start + step)
        yield _where(move, move.host[block]), _where(move, move.device[block])


def _where(move: Move, ids: Ids) -> _Where:
    return np.divmod(ids, move.slots) if move.single else (ids,)


def _runs(move: Move) -> _Blocks:
    """Index pairs of the longest runs of ids that are consecutive at both ends."""
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


def _nothing() -> None:
    return None
