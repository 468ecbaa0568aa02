"""Copies between host pools and pools on a CUDA device.

``kernel`` gathers and scatters straight from and to pinned memory, all layers it is given in one
launch; of a large backup of rows the copy engines take a share. ``direct`` gives the copy engines
batches of plain copies. Each direction has a stream of its own, so that backups and loads do not
wait for each other; neither waits for what the caller has queued elsewhere, unless the operation
says so (``CopyOp.after``).
"""

from collections.abc import Callable, Sequence
from functools import cache

import torch

from hicache_dbg.pools.cuda_backup import PieceBackup
from hicache_dbg.pools.cuda_batch import copy_batch
from hicache_dbg.pools.cuda_kernel import PieceKernel
from hicache_dbg.pools.cuda_runs import Runs
from hicache_dbg.pools.operation import TransferError
from hicache_dbg.pools.plan import Move, Piece

__all__ = ["CudaCopier", "direct", "kernel", "stream_for"]

Launch = Callable[[Sequence[int]], None]

#: Layers a load keeps under way: the next ones are queued while the device moves the first.
LAYERS_AHEAD = 2


@cache
def stream_for(device: torch.device, *, to_host: bool) -> torch.cuda.Stream:
    """The stream on which all copies of one direction run."""
    del to_host  # it only tells two streams of one device apart
    return torch.cuda.Stream(device)


class CudaCopier:
    """Queues copies on the stream of their direction."""

    in_flight = LAYERS_AHEAD

    def __init__(self, prepare: Callable[[Move, Piece, torch.cuda.Stream, bool], Launch]) -> None:
        self._prepare = prepare

    def bind(self, move: Move, *, to_host: bool) -> "BoundMove":
        """What is to move, with its tables on the device."""
        device = move.pieces[0].device.buffer.tensors[0].device
        stream = stream_for(device, to_host=to_host)
        with torch.cuda.stream(stream):
            launches = [
                self._prepare(move, piece, stream, to_host)
                for piece in (move.pieces if move.host.size else ())
            ]
        return BoundMove(launches, stream)


class BoundMove:
    """A move under way on a stream."""

    def __init__(self, launches: Sequence[Launch], stream: torch.cuda.Stream) -> None:
        self._launches = launches
        self._stream = stream

    @property
    def stream(self) -> int:
        """The raw handle of the stream the move is queued on."""
        return self._stream.cuda_stream

    def copy(self, layers: Sequence[int]) -> None:
        """Queue the copy of all ids of ``layers``."""
        for launch in self._launches:
            launch(layers)

    def mark(self) -> Callable[[], None]:
        """A function that blocks until what was queued so far has arrived."""
        event = torch.cuda.Event()
        event.record(self._stream)
        return event.synchronize


def kernel() -> CudaCopier:
    """Threads of the device read and write host memory themselves; it must be pinned."""
    return CudaCopier(_prepare_kernel)


def direct() -> CudaCopier:
    """Copy engines move one run of bytes after the other."""
    return CudaCopier(_prepare_direct)


def _prepare_kernel(
    move: Move,
    piece: Piece,
    stream: torch.cuda.Stream,
    to_host: bool,
) -> Launch:
    if not all(tensor.is_pinned() for tensor in piece.host.buffer.tensors):
        raise TransferError(
            f"{piece.component}: io backend kernel reads host memory from the device, but this "
            "host pool is not pinned; open it with pin=True, or use io backend direct"
        )
    if to_host:
        return PieceBackup(move, piece, stream).launch
    kernel = PieceKernel(move, piece, stream.device, to_host=False)
    return lambda layers: kernel.launch(layers, stream)


def _prepare_direct(move: Move, piece: Piece, stream: torch.cuda.Stream, to_host: bool) -> Launch:
    runs = Runs(move, piece)

    def launch(layers: Sequence[int]) -> None:
        host, device, sizes = runs.at(layers)
        target, source = (host, device) if to_host else (device, host)
        copy_batch(target, source, sizes, stream.cuda_stream)

    return launch
