"""A piece of a backup: by the copy kernel alone, or shared out between it and the copy engines.

An engine sends a long run of bytes a little faster than threads write it, and takes about as long
to begin a copy as to move 40 KiB. Rows of a layout that keeps all layers of a page together are
what engines like least, and whole pages of them what they like best: so the kernel gathers pages
on the device, the engines send them, and a few threads beside them fill what is left of the bus.
Shorter runs are the kernel's alone: shared out they came out from three per cent better to five
worse, from machine to machine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

from hicache_dbg.pools.cuda_batch import copy_batch
from hicache_dbg.pools.cuda_kernel import BACKUP_BLOCKS, PieceKernel
from hicache_dbg.pools.cuda_runs import cut_at_chunks
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.plan import Move, Piece

__all__ = ["PieceBackup", "in_slots", "is_gathered", "steps"]

#: Of the pages gathered, how many in a hundred the engines take.
ENGINES_SHARE = 80
#: Blocks of the kernel beside engines: with more, its writes leave the engines no room.
BLOCKS_BESIDE = 8
#: A move of fewer bytes is the kernel's alone: sharing it out would take longer than it does.
LEAST_BYTES = 32 << 20
#: Whole host pages are gathered from chunks shorter than this, if they are longer than that.
SHORT_CHUNK_BYTES, LONG_PAGE_BYTES = 8 << 10, 256 << 10
#: Device memory pages are gathered into: while one slot fills, others are on their way.
SLOT_BYTES, SLOTS = 16 << 20, 4

_LINE_BYTES = 128


class PieceBackup:
    """One piece of a backup, ready to be queued for any of its layers."""

    def __init__(self, move: Move, piece: Piece, stream: torch.cuda.Stream) -> None:
        self._move, self._piece, self._stream = move, piece, stream
        self._kernel = PieceKernel(move, piece, stream.device, to_host=True)

    def launch(self, layers: Sequence[int]) -> None:
        """Queue the copy of all ids of ``layers``; the stream ends when all of it has."""
        move, piece, ids = self._move, self._piece, self._move.host.size
        large = ids * piece.bytes_per_id * len(layers) >= LEAST_BYTES
        shared = large and not move.single and is_gathered(piece, layers)
        theirs = ids * ENGINES_SHARE // 100 if shared else 0
        blocks = BLOCKS_BESIDE if shared else BACKUP_BLOCKS
        self._kernel.launch(layers, self._stream, slice(theirs, ids), blocks=blocks)
        if shared:
            part = replace(move, host=move.host[:theirs], device=move.device[:theirs])
            engine = _stream(self._stream.device, "engine")
            _copy_gathered(part, piece, layers, engine)
            self._stream.wait_stream(engine)


def _copy_gathered(
    move: Move, piece: Piece, layers: Sequence[int], last: torch.cuda.Stream
) -> None:
    """Gather whole host pages on the device, a slot at a time, and send each page as one run.

    ``last`` ends when all have been sent.
    """
    gather = _stream(last.device, "gather")
    # Two in turn: one waits for its pages while the other's are on the bus.
    engines = (_stream(last.device, "second engine"), last)
    with torch.cuda.stream(gather):
        size = SLOTS * pages_a_slot(piece) * piece.host.page
        slots = torch.empty(size, dtype=torch.uint8, device=last.device)
        kernel = PieceKernel(in_slots(move, piece), piece, last.device, to_host=True)
    sent: list[torch.cuda.Event] = []
    for number, step in enumerate(steps(move, piece, slots.data_ptr())):
        engine = engines[number % 2]
        if number >= SLOTS:
            gather.wait_event(sent[number - SLOTS])
        kernel.launch(layers, gather, step.ids, step.shift)
        engine.wait_stream(gather)
        copy_batch(*step.runs, engine.cuda_stream)
        sent.append(torch.cuda.Event())
        sent[-1].record(engine)
    last.wait_stream(engines[0])
    slots.record_stream(last)


@dataclass(frozen=True, slots=True)
class Step:
    """Ids to gather into a slot, ``shift`` bytes from the host's, and the runs to send from it."""

    ids: slice
    shift: int
    runs: tuple[Ids, Ids, Ids]


def pages_a_slot(piece: Piece) -> int:
    """How many host pages are gathered at a time."""
    return max(1, SLOT_BYTES // piece.host.page)


def in_slots(move: Move, piece: Piece) -> Move:
    """The move with each id's place in its slot for its host id."""
    return replace(move, host=np.arange(move.host.size, dtype=np.int64) % pages_a_slot(piece))


def steps(move: Move, piece: Piece, slots: int) -> Iterator[Step]:
    """The ids slot by slot; ``slots`` is where the first slot begins."""
    run, pages, first_byte = piece.host.page, pages_a_slot(piece), _first_byte(piece)
    memory = piece.host.buffer.tensors[0].data_ptr()
    places = in_slots(move, piece).host
    for number, first in enumerate(range(0, move.host.size, pages)):
        ids = slice(first, first + pages)
        slot = slots + number % SLOTS * pages * run
        target, source = first_byte + move.host[ids] * run, slot + places[ids] * run
        sizes = np.full(target.size, run, dtype=np.int64)
        yield Step(ids, slot - first_byte, cut_at_chunks(target, source, sizes, memory))


def is_gathered(piece: Piece, layers: Sequence[int]) -> bool:
    """Whether short chunks of these layers make up long host pages, from their first byte on."""
    page = piece.host.page
    return (
        len(layers) > 1
        and piece.chunk < SHORT_CHUNK_BYTES
        and page >= LONG_PAGE_BYTES
        and page == piece.bytes_per_id * len(layers)
        and page % _LINE_BYTES == _first_byte(piece) % _LINE_BYTES == 0
    )


def _first_byte(piece: Piece) -> int:
    return piece.host.address(0)


@cache
def _stream(device: torch.device, role: str) -> torch.cuda.Stream:
    del role  # it only tells streams of one device apart
    return torch.cuda.Stream(device)
