"""Backups of whole host pages: gathered on the device, then sent by the copy engines.

An engine needs about as long to start a copy as to move 40 KiB. Where a layout keeps all layers of
a page together, the device therefore first assembles each page in a staging slot of its own memory,
and every page becomes one copy.
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

#: A smaller move is not gathered: gathering would take longer than the move itself.
LEAST_BYTES = 32 << 20
#: Shorter host pages are not worth gathering.
LONG_PAGE_BYTES = 32 << 10
#: Staging memory on the device: while one slot fills, the others are being sent.
SLOT_BYTES, SLOTS = 16 << 20, 4


def is_gathered(move: Move, piece: Piece, layers: Sequence[int]) -> bool:
    """Return whether the chunks of ``layers`` form complete host pages long enough to gather."""
    page = piece.host.page
    return (
        not move.single
        and len(layers) > 1
        and page >= LONG_PAGE_BYTES
        and page == piece.bytes_per_id * len(layers)
        and page * move.host.size >= LEAST_BYTES
    )


class Gather:
    """Whole host pages of one piece, and the staging memory they are gathered in.

    Keep the object alive until the last copy has finished.
    """

    def __init__(self, move: Move, piece: Piece, last: torch.cuda.Stream) -> None:
        self._move, self._piece, self._last = move, piece, last
        self._gather = engine_stream(last.device, "gather")
        size = SLOTS * pages_a_slot(piece) * piece.host.page
        with torch.cuda.stream(self._gather):
            self._slots = torch.empty(size, dtype=torch.uint8, device=last.device)
        self._kernel = PieceKernel(in_slots(move, piece), piece, self._gather, to_host=True)

    def launch(self, layers: Sequence[int]) -> None:
        """Gather and send pages one staging slot at a time.

        ``last`` completes after all of them.
        """
        gather, last = self._gather, self._last
        # Two engines alternate: one waits for its pages while the other's are on the bus.
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
        finally:  # even if CUDA refused a copy: what is already queued must be waited for
            last.wait_stream(engines[0])
            last.wait_stream(gather)


@dataclass(frozen=True, slots=True)
class Step:
    """Ids to gather into one slot, ``shift`` bytes from their host address, and runs to send."""

    ids: slice
    shift: int
    runs: tuple[Ids, Ids, Ids]


def pages_a_slot(piece: Piece) -> int:
    """Return how many host pages fit into one staging slot."""
    return max(1, SLOT_BYTES // piece.host.page)


def in_slots(move: Move, piece: Piece) -> Move:
    """Return the move with host ids replaced by each id's position in its staging slot."""
    return replace(move, host=np.arange(move.host.size, dtype=np.int64) % pages_a_slot(piece))


def steps(move: Move, piece: Piece, slots: int) -> Iterator[Step]:
    """Yield the ids slot by slot; ``slots`` is the aligned address of the first staging slot."""
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
    """Return the stream of ``device`` for one role in splitting up a copy."""
    del role  # only part of the cache key: one stream per device and role
    return torch.cuda.Stream(device)
