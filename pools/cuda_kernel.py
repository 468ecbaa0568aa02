"""How a piece of a move is cut into tiles for the copy kernel, and launched."""

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from math import gcd, prod
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import torch

from hicache_dbg.pools.cuda_program import Kernel, kernel_of
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.plan import Move, Piece, PieceEnd

__all__ = ["BACKUP_BLOCKS", "PieceKernel"]

#: Blocks a launch has at most, and threads a block: with these the bus is full. More gain
#: nothing and take multiprocessors from the model. What is written to the host is on its way at
#: once; what is read from there is waited for, and more of it has to be under way.
BACKUP_BLOCKS, LOAD_BLOCKS = 32, 128
THREADS = 512
#: Words of a chunk that a lane has under way, at most.
DEPTH = 8

_SOURCE = Path(__file__).with_name("move_chunks.cu")
_LINE_BYTES, _WARP = 128, 32
_MAX_INNER = 2
_INT32_MAX, _UINT32_MAX = 2**31 - 1, 2**32 - 1
_ID_BYTES = 4


class _Arguments(ctypes.Structure):
    """``struct Move`` of the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("host_ids", "device_ids")),
        *((name, ctypes.c_void_p) for name in ("host_layers", "device_layers")),
        *((name, ctypes.c_uint) for name in ("ids", "first_layer", "slots")),
        *((name, ctypes.c_uint) for name in ("count0", "count1", "items", "parts")),
        ("chunk", ctypes.c_int),
        ("shift", ctypes.c_longlong),
        ("host", ctypes.c_longlong * 4),
        ("device", ctypes.c_longlong * 4),
    )


class PieceKernel:
    """One piece of a move, ready to be launched for any of its layers and ids."""

    def __init__(self, move: Move, piece: Piece, device: torch.device, *, to_host: bool) -> None:
        tiling = _tiling_of(piece)
        most = move.slots * max(piece.host.buffer.pages, piece.device.buffer.pages)
        if most > _INT32_MAX:
            raise ValueError(f"{piece.component}: {most} slots, at most {_INT32_MAX} can be named")
        self._tiling = tiling
        self._total = move.host.size
        self._blocks = BACKUP_BLOCKS if to_host else LOAD_BLOCKS
        self._kernel = tiling.kernel(device, to_host=to_host, single=move.single)
        self._ids = _on_device(move, device)
        host_layers, device_layers = tiling.layers_on(device)
        self._arguments = _Arguments(
            host_layers=host_layers.data_ptr(),
            device_layers=device_layers.data_ptr(),
            slots=move.slots,
            count0=tiling.counts[0],
            count1=tiling.counts[1],
            parts=tiling.parts,
            chunk=piece.chunk,
            host=tiling.host,
            device=tiling.device,
        )

    def launch(
        self,
        layers: Sequence[int],
        stream: torch.cuda.Stream,
        ids: slice = slice(None),
        shift: int = 0,
        blocks: int | None = None,
    ) -> None:
        """Queue the copy of ``ids`` of ``layers`` on ``blocks`` blocks at most.

        ``shift`` is added to each host address.
        """
        tiling, arguments = self._tiling, self._arguments
        first, end, _ = ids.indices(self._total)
        per_layer = (end - first) * prod(tiling.counts)
        if not per_layer:
            return
        arguments.ids, arguments.shift = end - first, shift
        arguments.host_ids = self._ids.data_ptr() + first * _ID_BYTES
        arguments.device_ids = arguments.host_ids + self._total * _ID_BYTES
        most = blocks or self._blocks
        longest = max(1, _UINT32_MAX // (per_layer * tiling.parts))
        for layer, count in _ranges(layers, longest):
            arguments.first_layer, arguments.items = layer, count * per_layer
            groups = -(-count * per_layer * tiling.parts * tiling.lanes // THREADS)
            self._kernel.launch(min(groups, most), THREADS, stream.cuda_stream, arguments)


def _on_device(move: Move, device: torch.device) -> torch.Tensor:
    """Host ids, then device ids. From pinned memory the copy is queued, and nobody waits."""
    count = move.host.size
    pinned = torch.empty(2 * count, dtype=torch.int32, pin_memory=True)
    table = pinned.numpy()
    table[:count] = move.host
    table[count:] = move.device
    return pinned.to(device, non_blocking=True)


class _Tiling:
    """What of a launch follows from the piece alone.

    A lane moves a *word* at a time, the widest that divides every address and the chunk. Where
    host chunks do not begin at lines, a tile is shifted so that its accesses do, and the last
    reaches a little further.
    """

    def __init__(self, piece: Piece) -> None:
        if len(piece.counts) > _MAX_INNER:
            raise ValueError(f"{piece.component}: {len(piece.counts)} inner axes, at most 2")
        self.bases = (_bases(piece.host), _bases(piece.device))
        self.counts = (*piece.counts, 1, 1)[:_MAX_INNER]
        self.host, self.device = _steps(piece.host), _steps(piece.device)
        starts = [base.tolist() for base in self.bases]
        self.word = gcd(piece.chunk, 16, *self.host, *self.device, *starts[0], *starts[1])
        aligned = gcd(_LINE_BYTES, *self.host, *starts[0]) == _LINE_BYTES
        reach = piece.chunk + (0 if aligned else _LINE_BYTES - self.word)
        words = -(-reach // self.word)
        self.lanes = min(_WARP, _power_of_two(words))
        self.depth = min(DEPTH, _power_of_two(-(-words // self.lanes)))
        self.parts = -(-words // (self.lanes * self.depth))
        self._layers: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}
        self._kernels: dict[tuple[torch.device, bool, bool], Kernel] = {}

    def layers_on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the layers begin at both ends, as tables on ``device``."""
        found = self._layers.get(device)
        if found is None:
            host, own = (torch.from_numpy(base).to(device) for base in self.bases)
            found = self._layers[device] = (host, own)
        return found

    def kernel(self, device: torch.device, *, to_host: bool, single: bool) -> Kernel:
        """The kernel for these tiles."""
        key = (device, to_host, single)
        found = self._kernels.get(key)
        if found is None:
            found = self._kernels[key] = self._build(*key)
        return found

    def _build(self, device: torch.device, to_host: bool, single: bool) -> Kernel:
        macros = {
            "WORD_BYTES": self.word,
            "LANES": self.lanes,
            "DEPTH": self.depth,
            "TO_HOST": int(to_host),
            "SINGLE": int(single),
        }
        named = tuple(f"{name}={value}" for name, value in macros.items())
        return kernel_of(_SOURCE, "move_chunks", _architecture(device), named)


_tilings: WeakKeyDictionary[Piece, _Tiling] = WeakKeyDictionary()


def _tiling_of(piece: Piece) -> _Tiling:
    found = _tilings.get(piece)
    if found is None:
        found = _tilings[piece] = _Tiling(piece)
    return found


@cache
def _architecture(device: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _bases(end: PieceEnd) -> Ids:
    """Address of the first chunk of each layer at one end."""
    return np.array([end.address(layer) for layer in range(end.buffer.layers)], dtype=np.int64)


def _steps(end: PieceEnd) -> tuple[int, ...]:
    """Bytes from one page, slot and inner place to the next."""
    return (end.page, end.slot, *(*end.inner, 0, 0)[:_MAX_INNER])


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
