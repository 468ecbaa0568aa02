"""Cut a piece of a move into tiles for the copy kernel, and launch it."""

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

#: Most blocks per launch, and threads per block: enough to fill the bus. More gain nothing and
#: take multiprocessors from the model. Writes to the host are posted, reads from it are waited
#: for, so a load needs more bytes in flight than a backup.
BACKUP_BLOCKS, LOAD_BLOCKS = 32, 128
THREADS = 512
#: Smallest capacity of an id table, in pairs of ids.
LEAST_IDS = 1 << 13
#: Of a long list, so many ids are launched first: the kernel starts while the rest are uploaded.
AHEAD = 1 << 12
#: Most words of a chunk that one lane keeps in flight.
DEPTH = 8

_SOURCE = Path(__file__).with_name("move_chunks.cu")
_LINE_BYTES, _WARP = 128, 32
_MAX_INNER = 2
_INT32_MAX, _UINT32_MAX = 2**31 - 1, 2**32 - 1
_PAIR_BYTES = 8


class _Arguments(ctypes.Structure):
    """Mirror of the kernel's ``struct Move``."""

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
    """One piece of a move on one stream, ready to be launched for any of its layers and ids.

    It holds the tables the kernel reads: keep it alive until the last launch has finished.
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
        """Queue the copy of ``ids`` of ``layers`` on at most ``blocks`` blocks.

        ``shift`` (bytes) is added to each host address.
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
        """Make a range of ids available on the device, extending or replacing the present range."""
        if ids.start in self._there and ids[-1] in self._there:
            return
        self._table.upload(self._move, ids)
        joined = self._there and ids.start == self._there.stop
        self._there = range(self._there.start if joined else ids.start, ids.stop)

    def __del__(self) -> None:
        _tables[self._stream.cuda_stream].append(self._table)


class _Table:
    """Pairs of ids in pinned memory, and their copy in device memory allocated on ``stream``."""

    def __init__(self, size: int, stream: torch.cuda.Stream) -> None:
        self.size = size
        self._stream = stream.cuda_stream
        self._pinned = torch.empty((size, 2), dtype=torch.int32, pin_memory=True)
        self._pairs, self._source = self._pinned.numpy(), self._pinned.data_ptr()
        with torch.cuda.stream(stream):
            self._own = torch.empty((size, 2), dtype=torch.int32, device=stream.device)
        self.place = self._own.data_ptr()

    def upload(self, move: Move, ids: range) -> None:
        """Queue the upload of a range of a move's ids; the host does not wait for it."""
        part = slice(ids.start, ids.stop)
        self._pairs[part, 0] = move.host[part]
        self._pairs[part, 1] = move.device[part]
        first, size = ids.start * _PAIR_BYTES, len(ids) * _PAIR_BYTES
        copy_one(self.place + first, self._source + first, size, self._stream)


#: Idle tables by stream, kept for reuse: allocating one takes longer than a small move.
_tables: defaultdict[int, list[_Table]] = defaultdict(list)


def _table_for(size: int, stream: torch.cuda.Stream) -> _Table:
    """Return a table with room for ``size`` pairs, reusing an idle one if it is large enough."""
    free = _tables[stream.cuda_stream]
    try:
        table = free.pop()
    except IndexError:
        table = None
    if table is None or table.size < size:
        table = _Table(_power_of_two(max(size, LEAST_IDS)), stream)
    return table


class _Tiling:
    """The launch parameters that depend on the piece alone.

    A lane moves one *word* at a time, the widest that divides every address and the chunk. Where
    host chunks do not start at a cache line, each tile is shifted so that its accesses do, and the
    last tile reaches a little further.
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
        """Return the kernel for these tiles and its arguments, less those set per launch."""
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
        self._layers += tables  # keep them alive: the kernel holds raw pointers
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
    """Return the address of the first chunk of each layer at one end."""
    return np.array([end.address(layer) for layer in range(end.buffer.layers)], dtype=np.int64)


def _steps(end: PieceEnd) -> tuple[int, ...]:
    """Return the strides of page, slot and inner axes in bytes."""
    return (end.page, end.slot, *(*end.inner, 0, 0)[:_MAX_INNER])


def _ranges(layers: Sequence[int], longest: int) -> Iterator[tuple[int, int]]:
    """Split ``layers`` into runs of consecutive layers, ``(first, count)``: one launch each."""
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
