"""Copies between host pools and pools on a CUDA device.

``kernel`` gathers and scatters directly from and to pinned memory, all given layers in one launch.
For large moves with long runs, a copy engine takes a share of the work. ``direct`` hands the copy
engines batches of plain copies; where the host layout keeps all layers of a page together, backups
first gather each page on the device. Each direction has its own streams, so backups and loads do
not wait for each other. Neither waits for work the caller queued elsewhere unless the operation
says so (``CopyOp.after``).
"""

from collections.abc import Callable, Sequence
from functools import cache

import torch

from hicache_dbg.pools.cuda_batch import copy_batch
from hicache_dbg.pools.cuda_gather import Gather, is_gathered
from hicache_dbg.pools.cuda_runs import Runs
from hicache_dbg.pools.cuda_split import SplitPiece
from hicache_dbg.pools.operation import TransferError
from hicache_dbg.pools.plan import Move, Piece

__all__ = ["CudaCopier", "direct", "kernel", "stream_for"]

Launch = Callable[[Sequence[int]], None]

#: Layers a load keeps in flight: the next ones are queued while the device moves the first.
LAYERS_AHEAD = 2


@cache
def stream_for(device: torch.device, *, to_host: bool) -> torch.cuda.Stream:
    """Return the stream on which copies of one direction are queued.

    Copy engines may use further streams of their own.
    """
    del to_host  # only part of the cache key: one stream per device and direction
    return torch.cuda.Stream(device)


class CudaCopier:
    """Queues copies on the stream of their direction."""

    in_flight = LAYERS_AHEAD

    def __init__(
        self, prepare: Callable[[Move, Piece, list[torch.cuda.Stream], bool], Launch]
    ) -> None:
        self._prepare = prepare

    def bind(self, move: Move, *, to_host: bool) -> "BoundMove":
        """Prepare the launches of ``move`` and their tables on the device."""
        device = move.pieces[0].device.buffer.tensors[0].device
        streams = [stream_for(device, to_host=to_host)]
        launches = [
            self._prepare(move, piece, streams, to_host)
            for piece in (move.pieces if move.host.size else ())
        ]
        return BoundMove(launches, streams)


class BoundMove:
    """A prepared move and the streams it uses; launches may append streams to the list."""

    def __init__(self, launches: Sequence[Launch], streams: list[torch.cuda.Stream]) -> None:
        self._launches = launches
        self._streams = streams

    @property
    def stream(self) -> int:
        """Raw handle of a stream that completes after everything queued so far.

        Reading it makes the first stream wait for the others.
        """
        first, *others = self._streams
        for other in others:
            first.wait_stream(other)
        return first.cuda_stream

    def copy(self, layers: Sequence[int]) -> None:
        """Queue the copies of all ids of ``layers``."""
        for launch in self._launches:
            launch(layers)

    def mark(self) -> Callable[[], None]:
        """Return a function that blocks until everything queued so far has arrived."""
        events = [_event(stream) for stream in self._streams]

        def wait() -> None:
            for event in events:
                event.synchronize()

        return wait


def _event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(stream)
    return event


def kernel() -> CudaCopier:
    """Return a copier whose kernels access host memory directly; the memory must be pinned."""
    return CudaCopier(_prepare_kernel)


def direct() -> CudaCopier:
    """Return a copier that hands each run of bytes to the copy engines."""
    return CudaCopier(_prepare_direct)


def _prepare_kernel(
    move: Move, piece: Piece, streams: list[torch.cuda.Stream], to_host: bool
) -> Launch:
    if not all(tensor.is_pinned() for tensor in piece.host.buffer.tensors):
        raise TransferError(
            f"{piece.component}: io backend kernel reads host memory from the device, but this "
            "host pool is not pinned; open it with pin=True, or use io backend direct"
        )
    return SplitPiece(move, piece, streams, to_host=to_host).launch


def _prepare_direct(
    move: Move, piece: Piece, streams: list[torch.cuda.Stream], to_host: bool
) -> Launch:
    (stream,) = streams
    runs = Runs(move, piece)
    kept: list[Gather] = []

    def launch(layers: Sequence[int]) -> None:
        if to_host and is_gathered(move, piece, layers):
            kept.append(Gather(move, piece, stream))
            kept[-1].launch(layers)
            return
        host, own, sizes = runs.at(layers)
        target, source = (host, own) if to_host else (own, host)
        copy_batch(target, source, sizes, stream.cuda_stream)

    return launch
