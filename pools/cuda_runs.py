"""Express a move as plain memory copies, as few and as long as its addresses allow."""

from collections.abc import Sequence

import numpy as np

from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.pinning import CHUNK_BYTES
from hicache_dbg.pools.plan import Move, Piece, PieceEnd

__all__ = ["Runs", "cut_at_chunks"]


class Runs:
    """One piece of a move as ``(host, device, size)`` runs, at the same offsets in every layer."""

    def __init__(self, move: Move, piece: Piece) -> None:
        host = _offsets(move, piece, piece.host, move.host)
        device = _offsets(move, piece, piece.device, move.device)
        joined = (np.diff(host) == piece.chunk) & (np.diff(device) == piece.chunk)
        starts = np.flatnonzero(np.append(True, ~joined))
        self._piece = piece
        self._host = host[starts]
        self._device = device[starts]
        self._sizes = np.diff(np.append(starts, host.size)) * piece.chunk

    def at(self, layers: Sequence[int]) -> tuple[Ids, Ids, Ids]:
        """Return host addresses, device addresses and sizes (bytes) of the runs of ``layers``."""
        host = np.concatenate([self._piece.host.address(n) + self._host for n in layers])
        device = np.concatenate([self._piece.device.address(n) + self._device for n in layers])
        base = self._piece.host.buffer.tensors[0].data_ptr()
        return cut_at_chunks(host, device, np.tile(self._sizes, len(layers)), base)


def _offsets(move: Move, piece: Piece, end: PieceEnd, ids: Ids) -> Ids:
    """Return where each chunk starts within a layer, in bytes: ids outermost, inner axes within."""
    pages, slots = np.divmod(ids, move.slots) if move.single else (ids, np.zeros_like(ids))
    offsets = pages * end.page + slots * end.slot
    for count, step in zip(piece.counts, end.inner, strict=True):
        offsets = offsets[..., None] + np.arange(count) * step
    return offsets.reshape(-1)


def cut_at_chunks(host: Ids, device: Ids, sizes: Ids, base: int) -> tuple[Ids, Ids, Ids]:
    """Split runs at the ends of registered host memory chunks: CUDA refuses a copy across two.

    ``base`` is the start address of the registered memory.
    """
    while True:
        room = CHUNK_BYTES - (host - base) % CHUNK_BYTES
        over = sizes > room
        if not over.any():
            return host, device, sizes
        host = np.concatenate([host, (host + room)[over]])
        device = np.concatenate([device, (device + room)[over]])
        sizes = np.concatenate([np.minimum(sizes, room), (sizes - room)[over]])
