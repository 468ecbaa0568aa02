"""Backups of whole host pages: gathered on the device, and sent by the copy engines.

An engine takes about as long to begin a copy as to move 40 KiB. Where a layout keeps all layers
of a page together, the device therefore puts each page together first, in slots of its own
memory, and every page is one copy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

from hicache_dbg.pools.cuda_batch import copy_batch
from hicache_dbg.pools.cuda_kernel import PieceKernel
from hicache_dbg.pools.cuda_runs import cut_at_chunks
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.plan import Move, Piece

__all__ = ["Gather", "engine_stream", "in_slots", "is_gathered", "steps"]

#: A move of fewer bytes is not gathered: that would take longer than it does.
LEAST_BYTES = 32 << 20
#: Host pages shorter than this are not worth it.
LONG_PAGE_BYTES = 32 << 10
#: Device memory pages are gathered into: while one slot fills, others are on their way.
SLOT_BYTES, SLOTS = 16 << 20, 4


def is_gathered(move: Move, piece: Piece, layers: Sequence[int]) -> bool:
    """Whether many chunks of these layers make up host pages, whole and long."""
    page = piece.host.page
    return (
        not move.single
        and len(layers) > 1
        and page >= LONG_PAGE_BYTES
        and page == piece.bytes_per_id * len(layers)
        and page * move.host.size >= LEAST_BYTES
    )


class Gather:
    """Whole host pages of one piece, with the device memory they are gathered in.

    Keep it until the last copy has ended.
    """

    def __init__(self, move: Move, piece: Piece, last: torch.cuda.Stream) -> None:
        self._move, self._piece, self._last = move, piece, last
        self._gather = engine_stream(last.device, "gather")
        size = SLOTS * pages_a_slot(piece) * piece.host.page
        with torch.cuda.stream(self._gather):
            self._slots = torch.empty(size, dtype=torch.uint8, device=last.device)
        self._kernel = PieceKernel(in_slots(move, piece), piece, self._gather, to_host=True)

    def launch(self, layers: Sequence[int]) -> None:
        """Gather pages a slot at a time and send each as one run; ``last`` ends when all are."""
        gather, last = self._gather, self._last
        # Two in turn: one waits for its pages while the other's are on the bus.
        engines = (engine_stream(last.device, "second"), last)
        sent: list[torch.cuda.Event] = []
        try:
            for number, step in enumerate(steps(self._move, self._piece, self._slots.data_ptr())):
                engine = engines[number % 2]
                if number >= SLOTS:
                    gather.wait_event(sent[number - SLOTS])
                self._kernel.launch(layers, step.ids, shift=step.shift)
                engine.wait_stream(gather)
                copy_batch(*step.runs, engine.cuda_stream)
                sent.append(torch.cuda.Event())
                sent[-1].record(engine)
        finally:  # also where CUDA refused something: what was queued is still to end
            last.wait_stream(engines[0])
            last.wait_stream(gather)


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
    """The ids slot by slot; ``slots`` is where the first slot begins, at a line of memory."""
    run, pages, first_byte = piece.host.page, pages_a_slot(piece), piece.host.address(0)
    memory = piece.host.buffer.tensors[0].data_ptr()
    places = in_slots(move, piece).host
    for number, first in enumerate(range(0, move.host.size, pages)):
        ids = slice(first, first + pages)
        slot = slots + number % SLOTS * pages * run
        target, source = first_byte + move.host[ids] * run, slot + places[ids] * run
        sizes = np.full(target.size, run, dtype=np.int64)
        yield Step(ids, slot - first_byte, cut_at_chunks(target, source, sizes, memory))


@cache
def engine_stream(device: torch.device, role: str) -> torch.cuda.Stream:
    """A stream of ``device`` for one role in sharing a backup out."""
    del role  # it only tells streams of one device apart
    return torch.cuda.Stream(device)
