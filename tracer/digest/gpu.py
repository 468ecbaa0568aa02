"""XXH3-64 of tiles in CUDA memory: one small launch for many layers and pages, and nothing else.

No call here waits for the device, reads an index to the host or, once its geometry has been
prepared, allocates. A page id outside the view is never read: its digest is 0.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import torch

from hicache_dbg.tracer.digest import kernels
from hicache_dbg.tracer.digest.launch import Launcher, is_capturing
from hicache_dbg.tracer.digest.plan import Kernel, Reading, reading_of
from hicache_dbg.tracer.digest.ring import ViolationRing
from hicache_dbg.tracer.view import View

__all__ = ["GRAPH", "UNKNOWN", "GpuDigester"]

#: Why a launch was refused: its stream is being captured into a graph. Equals ``SkipReason.GRAPH``.
GRAPH: Final = "graph"
#: The expectation of a tile of which nothing is known; it is not compared.
UNKNOWN: Final = 0

_NO_RING = (0, 0, 1, 0)


class GpuDigester:
    """Digests and compares tiles that lie in the memory of one CUDA device.

    Calls may come from any thread whose current device is this one. Tensors must live until the
    stream is past the launch; whoever calls keeps ``view.owner`` alive meanwhile.

    Args:
        device: The device, ``cuda`` or ``cuda:N``.
    """

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self.device = torch.device(device)
        signed = [word - (word >> 63 << 64) for word in kernels.TABLE]
        self._table = torch.tensor(signed, dtype=torch.int64, device=self.device)
        self._table_at = self._table.data_ptr()
        self._prepared: dict[int, _Prepared] = {}
        self._launchers: dict[Kernel, Launcher] = {}

    def prepare(self, view: View, *, partial: bool = False) -> None:
        """Compile and upload what digests of ``view`` need. Takes seconds the first time.

        Args:
            view: A view on this device; it is kept until :meth:`forget`.
            partial: Prepare for slot ranges as well as for whole pages.

        Raises:
            ValueError: If the view is on another device, or its pages are 2 GiB or longer.
        """
        prepared = self._prepare(view)
        self._reading(prepared, 0, None)
        if partial and view.slots_per_page > 1:
            for last in {1, view.slots_per_page - 1}:
                self._reading(prepared, 0, last)

    def forget(self, view: View) -> None:
        """Let go of a view whose tensors are to be freed."""
        self._prepared.pop(id(view), None)

    def digest(
        self,
        view: View,
        layers: Sequence[int],
        pages: torch.Tensor,
        first: int = 0,
        last: int | None = None,
        *,
        out: torch.Tensor,
        unit: int = 1,
        stream: torch.cuda.Stream | None = None,
    ) -> Literal["graph"] | None:
        """Enqueue XXH3-64 of slots ``first .. last - 1`` of each tile, into ``out``.

        Args:
            view: Where the tiles are.
            layers: Indices into ``view.bases``; a ``range`` of step 1 needs nothing uploaded.
            pages: Page ids, int64 on this device, one dimension, any stride. They are read there,
                when the launch runs.
            first: The first slot to digest.
            last: The slot after the last one; the end of the page if left out.
            out: int64 [layers, pages] on this device, contiguous in pages; holds the digests' bits.
            unit: What an id counts, in ids to a page: page ``id // unit`` is digested.
            stream: Where to enqueue; the current stream if left out.

        Returns:
            None, or why nothing was enqueued.

        Raises:
            ValueError: If a tensor's dtype, shape or device or the slot range does not fit.
            IndexError: If a layer lies outside the view.
        """
        return self._enqueue(view, layers, pages, first, last, out, unit, stream, _NO_RING)

    def compare(
        self,
        view: View,
        layers: Sequence[int],
        pages: torch.Tensor,
        first: int = 0,
        last: int | None = None,
        *,
        expected: torch.Tensor,
        ring: ViolationRing,
        tag: int,
        unit: int = 1,
        stream: torch.cuda.Stream | None = None,
    ) -> Literal["graph"] | None:
        """Enqueue the same digests, compared on the device with ``expected`` [layers, pages].

        Only tiles that differ leave a trace: a record in ``ring`` under ``tag``, counted past its
        capacity. An expectation of :data:`UNKNOWN` is not compared. The other arguments, the
        result and the errors are those of :meth:`digest`.
        """
        where = (ring.records, ring.counter, ring.capacity, tag)
        return self._enqueue(view, layers, pages, first, last, expected, unit, stream, where)

    def _enqueue(
        self,
        view: View,
        layers: Sequence[int],
        pages: torch.Tensor,
        first: int,
        last: int | None,
        digests: torch.Tensor,
        unit: int,
        stream: torch.cuda.Stream | None,
        ring: tuple[int, int, int, int],
    ) -> Literal["graph"] | None:
        handle = current = torch.cuda.current_stream(self.device).cuda_stream
        if stream is not None:
            handle = stream.cuda_stream
        if is_capturing(current) or (handle != current and is_capturing(handle)):
            return GRAPH
        prepared = self._prepared.get(id(view)) or self._prepare(view)
        bases, rows = prepared.bases(layers)
        count = _checked(pages, digests, rows, self._table)
        reading, launcher = prepared.readings.get((first, last)) or self._reading(
            prepared, first, last
        )
        if count and rows:
            launcher(
                *(-(-count // reading.kernel.tiles), rows, handle, self._table_at, bases),
                *(pages.data_ptr(), pages.stride(0), unit, count, view.pages, view.page_stride),
                *(reading.offset, reading.first, reading.slots, reading.size),
                *(digests.data_ptr(), digests.stride(0), *ring),
            )
        return None

    def _prepare(self, view: View) -> "_Prepared":
        if torch.device(view.device).type != "cuda":
            raise ValueError(
                f"{view.pool}.{view.component}: the GPU cannot read tiles on {view.device}: "
                f"expected a view on {self.device}"
            )
        prepared = self._prepared.get(id(view))
        if prepared is None:
            prepared = self._prepared[id(view)] = _Prepared(view, self.device)
        return prepared

    def _reading(
        self, prepared: "_Prepared", first: int, last: int | None
    ) -> tuple[Reading, Launcher]:
        reading = reading_of(prepared.view, first, last)
        launcher = self._launchers.get(reading.kernel)
        if launcher is None:
            launcher = self._launchers[reading.kernel] = _compiled(reading.kernel)
        prepared.readings[first, last] = reading, launcher
        return reading, launcher


class _Prepared:
    """What is on the device, and compiled, for one view."""

    def __init__(self, view: View, device: torch.device) -> None:
        self.view = view
        self.readings: dict[tuple[int, int | None], tuple[Reading, Launcher]] = {}
        self._device = device
        self._tables: dict[tuple[int, ...], torch.Tensor] = {}
        self._all = self._table(tuple(range(view.layers)))

    def bases(self, layers: Sequence[int]) -> tuple[int, int]:
        """Address of the base addresses of ``layers``, and how many they are."""
        if isinstance(layers, range) and layers.step == 1:
            if layers and not 0 <= layers.start < layers.stop <= self.view.layers:
                raise self._outside(layers)
            return self._all + 8 * layers.start, len(layers)
        chosen = tuple(layers)
        return self._table(chosen), len(chosen)

    def _table(self, layers: tuple[int, ...]) -> int:
        table = self._tables.get(layers)
        if table is None:
            if any(not 0 <= layer < self.view.layers for layer in layers):
                raise self._outside(layers)
            bases = [self.view.bases[layer] for layer in layers]
            table = torch.tensor(bases, dtype=torch.int64, device=self._device)
            self._tables[layers] = table
        return table.data_ptr()

    def _outside(self, layers: Sequence[int]) -> IndexError:
        return IndexError(
            f"{self.view.pool}.{self.view.component}: layers {list(layers)} are not all among the "
            f"view's {self.view.layers}"
        )


def _compiled(kernel: Kernel) -> Launcher:
    function = kernels.short_tiles if kernel.short else kernels.long_tiles
    constants: Mapping[str, Any] = {"P": kernel.tiles, **dict(kernel.constants)}
    # Values past 32 bits stand for 64-bit arguments; they are not read.
    values = [1 << 40] * len(kernels.ARGUMENTS)
    compiled = function.warmup(*values, **constants, grid=(1,), num_warps=kernel.warps)
    return Launcher(compiled, len(values))


def _checked(pages: torch.Tensor, digests: torch.Tensor, rows: int, like: torch.Tensor) -> int:
    """How many pages there are, once dtypes, shapes and devices are known to fit."""
    count = pages.shape[0] if pages.dim() == 1 else -1
    if (
        pages.dtype is not torch.int64
        or digests.dtype is not torch.int64
        or digests.shape != (rows, count)
        or pages.device != like.device
        or digests.device != like.device
        or (count > 1 and digests.stride(1) != 1)
    ):
        raise ValueError(
            f"page ids are {pages.dtype} {list(pages.shape)} on {pages.device} and digests "
            f"{digests.dtype} {list(digests.shape)} on {digests.device}: expected int64 [pages] and "
            f"int64 [{rows}, pages], contiguous in pages, on {like.device}"
        )
    return count
