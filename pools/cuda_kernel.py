"""How a piece of a move is cut into tiles for the copy kernel, and launched."""

import ctypes
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from math import gcd, prod
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import torch

from hicache_dbg.pools.cuda_batch import copy_one
from hicache_dbg.pools.cuda_program import Kernel, kernel_of
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.plan import Move, Piece, PieceEnd

__all__ = ["PieceKernel"]

#: Blocks a launch has at most, and threads a block: with these the bus is full. More gain
#: nothing and take multiprocessors from the model. What is written to the host is on its way at
#: once; what is read from there is waited for, and more of it has to be under way.
BACKUP_BLOCKS, LOAD_BLOCKS = 32, 128
THREADS = 512
#: Room for pairs of ids that a table begins with.
LEAST_IDS = 1 << 13
#: Of many more ids than these, so many go ahead: the kernel begins while the rest are made ready.
AHEAD = 1 << 12
#: Words of a chunk that a lane has under way, at most.
DEPTH = 8

_SOURCE = Path(__file__).with_name("move_chunks.cu")
_LINE_BYTES, _WARP = 128, 32
_MAX_INNER = 2
_INT32_MAX, _UINT32_MAX = 2**31 - 1, 2**32 - 1
_PAIR_BYTES = 8


class _Arguments(ctypes.Structure):
    """``struct Move`` of the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("ids", "host_layers", "device_layers")),
        *((name, ctypes.c_uint) for name in ("count", "first_layer", "slots")),
        *((name, ctypes.c_uint) for name in ("count0", "count1", "items", "parts")),
        ("chunk", ctypes.c_int),
        ("shift", ctypes.c_longlong),
        ("host", ctypes.c_longlong * 4),
        ("device", ctypes.c_longlong * 4),
    )


class PieceKernel:
    """One piece of a move, ready to be launched for any of its layers and ids, on one stream.

    It holds the tables that the kernel reads: keep it until the last launch has ended.
    """

    def __init__(
        self, move: Move, piece: Piece, stream: torch.cuda.Stream, *, to_host: bool
    ) -> None:
        self._move, self._stream = move, stream
        self._table, self._there = _table_for(move.host.size, stream), range(0)
        self._blocks = BACKUP_BLOCKS if to_host else LOAD_BLOCKS
        self._tiling = _tiling_of(piece)
        key = stream.device, to_host, move.single, move.slots
        self._kernel, known = self._tiling.prepared(*key)
        self._arguments = _Arguments.from_buffer_copy(known)

    def launch(
        self,
        layers: Sequence[int],
        ids: slice = slice(None),
        *,
        shift: int = 0,
        blocks: int | None = None,
    ) -> None:
        """Queue the copy of ``ids`` of ``layers`` on ``blocks`` blocks at most.

        ``shift`` is added to each host address.
        """
        first, end, _ = ids.indices(self._move.host.size)
        most = blocks or self._blocks
        if end - first > 2 * AHEAD and first not in self._there:
            self._launch(layers, range(first, first + AHEAD), shift, most)
            first += AHEAD
        if first < end:
            self._launch(layers, range(first, end), shift, most)

    def _launch(self, layers: Sequence[int], ids: range, shift: int, most: int) -> None:
        tiling, arguments = self._tiling, self._arguments
        self._upload(ids)
        per_layer = len(ids) * prod(tiling.counts)
        arguments.ids = self._table.place + ids.start * _PAIR_BYTES
        arguments.count, arguments.shift = len(ids), shift
        longest = max(1, _UINT32_MAX // (per_layer * tiling.parts))
        for layer, count in _ranges(layers, longest):
            arguments.first_layer, arguments.items = layer, count * per_layer
            groups = -(-count * per_layer * tiling.parts * tiling.lanes // THREADS)
            self._kernel.launch(min(groups, most), THREADS, self._stream.cuda_stream, arguments)

    def _upload(self, ids: range) -> None:
        """Have a range of ids on the device: the next after those there, or others instead."""
        if ids.start in self._there and ids[-1] in self._there:
            return
        self._table.upload(self._move, ids)
        joined = self._there and ids.start == self._there.stop
        self._there = range(self._there.start if joined else ids.start, ids.stop)

    def __del__(self) -> None:
        _tables[self._stream.cuda_stream].append(self._table)


class _Table:
    """Pairs of ids in pinned memory, and their copy on the device, in memory of ``stream``."""

    def __init__(self, size: int, stream: torch.cuda.Stream) -> None:
        self.size = size
        self._stream = stream.cuda_stream
        self._pinned = torch.empty((size, 2), dtype=torch.int32, pin_memory=True)
        self._pairs, self._source = self._pinned.numpy(), self._pinned.data_ptr()
        with torch.cuda.stream(stream):
            self._own = torch.empty((size, 2), dtype=torch.int32, device=stream.device)
        self.place = self._own.data_ptr()

    def upload(self, move: Move, ids: range) -> None:
        """Queue the copy of a range of a move's ids to the device; nobody waits for it."""
        part = slice(ids.start, ids.stop)
        self._pairs[part, 0] = move.host[part]
        self._pairs[part, 1] = move.device[part]
        first, size = ids.start * _PAIR_BYTES, len(ids) * _PAIR_BYTES
        copy_one(self.place + first, self._source + first, size, self._stream)


#: Tables that nobody uses, by stream. What makes them anew takes longer than an id to move.
_tables: defaultdict[int, list[_Table]] = defaultdict(list)


def _table_for(size: int, stream: torch.cuda.Stream) -> _Table:
    """A table with room for ``size`` pairs."""
    free = _tables[stream.cuda_stream]
    try:
        table = free.pop()
    except IndexError:
        table = None
    if table is None or table.size < size:
        table = _Table(_power_of_two(max(size, LEAST_IDS)), stream)
    return table


class _Tiling:
    """What of a launch follows from the piece alone.

    A lane moves a *word* at a time, the widest that divides every address and the chunk. Where
    host chunks do not begin at lines, a tile is shifted so that its accesses do, and the last
    reaches a little further.
    """

    def __init__(self, piece: Piece) -> None:
        if len(piece.counts) > _MAX_INNER:
            raise ValueError(f"{piece.component}: {len(piece.counts)} inner axes, at most 2")
        self._bases = (_bases(piece.host), _bases(piece.device))
        self.counts = (*piece.counts, 1, 1)[:_MAX_INNER]
        self._host, self._device = _steps(piece.host), _steps(piece.device)
        starts = [base.tolist() for base in self._bases]
        self._word = gcd(piece.chunk, 16, *self._host, *self._device, *starts[0], *starts[1])
        aligned = gcd(_LINE_BYTES, *self._host, *starts[0]) == _LINE_BYTES
        reach = piece.chunk + (0 if aligned else _LINE_BYTES - self._word)
        words = -(-reach // self._word)
        self.lanes = min(_WARP, _power_of_two(words))
        self.depth = min(DEPTH, _power_of_two(-(-words // self.lanes)))
        self.parts = -(-words // (self.lanes * self.depth))
        self._most_pages = max(piece.host.buffer.pages, piece.device.buffer.pages)
        self._component, self._chunk = piece.component, piece.chunk
        self._layers: tuple[torch.Tensor, ...] = ()
        self._known: dict[tuple[torch.device, bool, bool, int], tuple[Kernel, _Arguments]] = {}

    def prepared(
        self, device: torch.device, to_host: bool, single: bool, slots: int
    ) -> tuple[Kernel, _Arguments]:
        """The kernel for these tiles, and its arguments but for what a launch adds."""
        key = (device, to_host, single, slots)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = (
                self._build(device, to_host, single),
                self._arguments(device, slots),
            )
        return found

    def _arguments(self, device: torch.device, slots: int) -> _Arguments:
        if slots * self._most_pages > _INT32_MAX:
            raise ValueError(
                f"{self._component}: {slots * self._most_pages} slots, "
                f"at most {_INT32_MAX} can be named"
            )
        tables = tuple(torch.from_numpy(base).to(device) for base in self._bases)
        self._layers += tables  # they stay where the kernel finds them
        return _Arguments(
            host_layers=tables[0].data_ptr(),
            device_layers=tables[1].data_ptr(),
            slots=slots,
            count0=self.counts[0],
            count1=self.counts[1],
            parts=self.parts,
            chunk=self._chunk,
            host=self._host,
            device=self._device,
        )

    def _build(self, device: torch.device, to_host: bool, single: bool) -> Kernel:
        macros = {
            "WORD_BYTES": self._word,
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
