"""Split a piece of a move between the copy kernel and a copy engine.

An engine moves bytes slightly faster than threads do, but needs about as long to start a copy as to
move 40 KiB. Given a small share of sufficiently long runs, it finishes before the kernel does.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from hicache_dbg.pools.cuda_batch import copy_batch
from hicache_dbg.pools.cuda_gather import Gather, engine_stream, is_gathered
from hicache_dbg.pools.cuda_kernel import PieceKernel
from hicache_dbg.pools.cuda_runs import Runs
from hicache_dbg.pools.plan import Move, Piece

__all__ = ["SplitPiece"]

#: ``(least run length in bytes, percent of the ids an engine takes)``, longest first. With half as
#: much again, some runs finish after the kernel. Shorter runs an engine sometimes fetches at a
#: tenth of the bus rate.
BACKUP_SHARES = ((512 << 10, 90), (64 << 10, 30), (32 << 10, 25), (16 << 10, 20))
LOAD_SHARES = ((64 << 10, 50), (32 << 10, 30))
#: Shorter chunks of a backup are first gathered into whole host pages where possible.
GATHERED_BELOW_BYTES = 16 << 10
#: Smaller launches go to the kernel alone: splitting them would cost more than it gains.
LEAST_BYTES = 32 << 20
#: Blocks of the kernel while an engine works beside it: more would starve the engine.
BLOCKS_BESIDE = 8


class SplitPiece:
    """One piece of a move, ready to be queued for any of its layers.

    ``streams`` are the streams the move runs on; an engine's stream is appended on first use.
    """

    def __init__(
        self, move: Move, piece: Piece, streams: list[torch.cuda.Stream], *, to_host: bool
    ) -> None:
        self._move, self._piece, self._to_host = move, piece, to_host
        self._streams = streams
        self._kernel = PieceKernel(move, piece, streams[0], to_host=to_host)
        self._gathers: list[Gather] = []

    def launch(self, layers: Sequence[int]) -> None:
        """Queue the copies of all ids of ``layers``."""
        gathered = (
            self._to_host
            and self._piece.chunk < GATHERED_BELOW_BYTES
            and is_gathered(self._move, self._piece, layers)
        )
        run = self._piece.host.page if gathered else self._piece.chunk
        theirs = self._move.host.size * self._share(run, layers) // 100
        if not theirs:
            self._kernel.launch(layers)
            return
        self._kernel.launch(layers, slice(theirs, None), blocks=BLOCKS_BESIDE)
        move = self._move
        part = replace(move, host=move.host[:theirs], device=move.device[:theirs])
        if gathered:
            self._gathers.append(Gather(part, self._piece, self._engine()))
            self._gathers[-1].launch(layers)
        else:
            self._copy_runs(Runs(part, self._piece), layers)

    def _share(self, run: int, layers: Sequence[int]) -> int:
        """Return the percentage of ids that the engine takes, given copies of ``run`` bytes."""
        if self._piece.bytes_per_id * self._move.host.size * len(layers) < LEAST_BYTES:
            return 0
        for least, share in BACKUP_SHARES if self._to_host else LOAD_SHARES:
            if run >= least:
                return share
        return 0

    def _copy_runs(self, runs: Runs, layers: Sequence[int]) -> None:
        host, device, sizes = runs.at(layers)
        target, source = (host, device) if self._to_host else (device, host)
        copy_batch(target, source, sizes, self._engine().cuda_stream)

    def _engine(self) -> torch.cuda.Stream:
        engine = engine_stream(self._streams[0].device, "backup" if self._to_host else "load")
        if engine not in self._streams:
            self._streams.append(engine)
        return engine
