"""XXH3-64 of tiles in CUDA memory: one small launch for many layers and pages, and nothing else.

No call here waits for the device, reads an index to the host or, once its geometry has been
prepared, allocates. A page id outside the view is never followed: its digest is 0.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from hicache_dbg.tracer.digest import kernels
from hicache_dbg.tracer.digest.launch import Launcher, PreparedLaunch
from hicache_dbg.tracer.digest.plan import Kernel, Reading, reading_of
from hicache_dbg.tracer.digest.ring import ViolationRing
from hicache_dbg.tracer.view import View

if TYPE_CHECKING:
    from hicache_dbg.tracer.digest.watches import Watches

__all__ = ["GRAPH", "UNKNOWN", "GpuDigester"]

#: Why a launch was refused: the caller is capturing a graph. Equals ``SkipReason.GRAPH``.
GRAPH: Final = "graph"
#: The expectation of a tile of which nothing is known; it is not compared.
UNKNOWN: Final = 0


#: Pages to a program that rolls up, and layers it looks at together.
_SETTLED, _TOGETHER = 32, 64

#: The kernels' arguments ring, counter, capacity and tag that stand for "store the digests".
_NO_RING = (0, 0, 1, 0)


class GpuDigester:
    """Digests and compares tiles that lie in the memory of one CUDA device.

    Calls may come from any thread whose current device is this one. Tensors must live until the
    stream is past the launch; whoever calls keeps ``view.owner`` alive meanwhile.

    Args:
        device: The device, ``cuda`` or ``cuda:N``.
    """

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self._index = torch.device(device).index
        if self._index is None:
            self._index = torch.cuda.current_device()
        self.device = torch.device("cuda", self._index)
        signed = [word - (word >> 63 << 64) for word in kernels.TABLE]
        self._table = torch.tensor(signed, dtype=torch.int64, device=self.device)
        self._views: dict[int, _PreparedView] = {}
        self._compiled: dict[Kernel, Any] = {}
        self._settle: Launcher | None = None

    def prepare(self, view: View, *, partial: bool = False) -> None:
        """Compile and upload what digests of ``view`` need. Takes seconds the first time.

        Args:
            view: A view on this device; it is kept until :meth:`forget`.
            partial: Prepare for slot ranges as well as for whole pages.

        Raises:
            ValueError: If the view is on another device, or its pages are 2 GiB or longer.
        """
        prepared = self._prepared(view)
        prepared.whole(few=False)
        if partial and view.slots_per_page > 1:
            for last in {1, view.slots_per_page - 1}:
                prepared.launch(0, last)

    def watches(self) -> "Watches":
        """What follows whole operations on this device."""
        from hicache_dbg.tracer.digest.watches import Watches

        return Watches(self)

    def forget(self, view: View) -> None:
        """Let go of a view whose tensors are to be freed."""
        self._views.pop(id(view), None)

    def digest_launch(
        self,
        view: View,
        layers: Sequence[int],
        pages: torch.Tensor,
        out: torch.Tensor,
        *,
        few: bool,
    ) -> PreparedLaunch:
        """A launch that digests whole pages, as :meth:`digest`; it is called with how many of them.

        Args:
            view: Where the tiles are.
            layers: Indices into ``view.bases``.
            pages: Page ids, as for :meth:`digest`.
            out: int64 [layers, pages].
            few: Whether there are few tiles and somebody waits for them.
        """
        prepared = self._prepared(view)
        launch, tiles = prepared.whole(few=few)
        rows, arguments = _arguments(prepared, layers, pages, out, 1, self._index)
        return launch.prepared(tiles, rows, *arguments, *_NO_RING)

    def settle_launch(  # noqa: PLR0917
        self,
        digests: torch.Tensor,
        layers: torch.Tensor,
        head: torch.Tensor,
        entries: torch.Tensor,
        keys: torch.Tensor,
        rollups: torch.Tensor,
        *,
        ring: ViolationRing,
        compare: bool,
    ) -> PreparedLaunch:
        """A launch that rolls ``digests`` [layers, pages] up, and stores or compares.

        It is called with how many pages there are. The formula is :func:`hicache_dbg.tracer.digest.rollup.rolled`.

        Args:
            digests: int64 [layers, pages], as :meth:`digest` leaves them.
            layers: Their numbers, int64 [layers].
            head: int64 [2]: the operation's tag, and a count to which pages found equal are added.
            entries: Which entry of ``rollups`` each page has, int64 [pages]; -1 for none.
            keys: The bits of each page's key, int64 [pages].
            rollups: The table, int64; 0 where nothing is known.
            ring: Where every layer of a page goes that is known and differs.
            compare: Whether to compare with the table or to store there.
        """
        if self._settle is None:
            self._settle = Launcher(_compiled_settle(), len(kernels.SETTLE), ())
        rows, pages = digests.shape
        return self._settle.prepared(
            *(_SETTLED, 1, digests.data_ptr(), digests.stride(0)),
            *(layers.data_ptr(), rows, head.data_ptr(), entries.data_ptr(), keys.data_ptr()),
            *(pages, rollups.data_ptr(), int(compare), ring.records, ring.counter, ring.capacity),
        )

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
        stream: int | None = None,
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
                (In pinned memory it would do, but programs then wait in line for the bus: 7 % of a
                copy beside it.)
            unit: How many ids a page has: page ``id // unit`` is digested.
            stream: The raw handle of the stream to enqueue on; the current stream if left out.

        Returns:
            None, or why nothing was enqueued.

        Raises:
            ValueError: If a tensor's dtype, shape or device or the slot range does not fit.
            IndexError: If a layer lies outside the view.
        """
        return self._enqueue(
            view, layers, pages, (first, last), out, unit=unit, stream=stream, ring=_NO_RING
        )

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
        stream: int | None = None,
    ) -> Literal["graph"] | None:
        """Enqueue the same digests, compared on the device with ``expected`` [layers, pages].

        Only tiles that differ leave a trace: a record in ``ring`` under ``tag``, counted past its
        capacity. An expectation of :data:`UNKNOWN` is not compared. The other arguments, the
        result and the errors are those of :meth:`digest`.
        """
        where = (ring.records, ring.counter, ring.capacity, tag)
        return self._enqueue(
            view, layers, pages, (first, last), expected, unit=unit, stream=stream, ring=where
        )

    def _enqueue(
        self,
        view: View,
        layers: Sequence[int],
        pages: torch.Tensor,
        slots: tuple[int, int | None],
        digests: torch.Tensor,
        *,
        unit: int,
        stream: int | None,
        ring: tuple[int, int, int, int],
    ) -> Literal["graph"] | None:
        if torch.cuda.is_current_stream_capturing():
            return GRAPH
        prepared = self._views.get(id(view)) or self._prepared(view)
        launch, tiles = prepared.launches.get(slots) or prepared.launch(*slots)
        rows, arguments = _arguments(prepared, layers, pages, digests, unit, self._index)
        if stream is None:
            stream = torch._C._cuda_getCurrentRawStream(self._index)  # noqa: SLF001 (0.2 us, not 8)
        if len(pages) and rows:
            launch(-(-len(pages) // tiles), rows, stream, *arguments, *ring)
        return None

    def _prepared(self, view: View) -> "_PreparedView":
        prepared = self._views.get(id(view))
        if prepared is None:
            if torch.device(view.device).type != "cuda":
                raise ValueError(
                    f"{view.pool}.{view.component}: the GPU cannot read tiles on {view.device}: "
                    f"expected a view on {self.device}"
                )
            prepared = _PreparedView(view, self._table, self._compiled)
            self._views[id(view)] = prepared
        return prepared


class _PreparedView:
    """What is on the device, and compiled, for one view."""

    def __init__(self, view: View, table: torch.Tensor, compiled: dict[Kernel, Any]) -> None:
        self.launches: dict[tuple[int, int | None], tuple[Launcher, int]] = {}
        self._few: tuple[Launcher, int] | None = None
        self._view, self._table, self._compiled = view, table, compiled
        self._uploaded: dict[tuple[int, ...], torch.Tensor] = {}
        self._every_base = self._upload(tuple(range(view.layers)))

    def whole(self, *, few: bool) -> tuple[Launcher, int]:
        """The launcher for whole pages, or the one that is quick with a few of them."""
        known = self._few if few else self.launches.get((0, None))
        if known is None and few:
            known = self._few = self._made(reading_of(self._view, few=True))
        return known or self.launch(0, None)

    def launch(self, first: int, last: int | None) -> tuple[Launcher, int]:
        """The launcher for a slot range, and how many tiles one of its programs takes."""
        made = self.launches[first, last] = self._made(reading_of(self._view, first, last))
        return made

    def _made(self, reading: Reading) -> tuple[Launcher, int]:
        view, kernel = self._view, reading.kernel
        if kernel not in self._compiled:
            self._compiled[kernel] = _compile(kernel)
        slots = (reading.offset, reading.first, reading.slots, reading.size)
        fixed = (self._table.data_ptr(), view.pages, view.page_stride, *slots)
        return Launcher(self._compiled[kernel], len(kernels.VARYING), fixed), kernel.tiles

    def bases(self, layers: Sequence[int]) -> tuple[int, int]:
        """Device address of the base addresses of ``layers``, and how many they are."""
        if isinstance(layers, range) and layers.step == 1:
            if layers and not 0 <= layers.start < layers.stop <= self._view.layers:
                raise self._outside(layers)
            return self._every_base + 8 * layers.start, len(layers)
        return self._upload(tuple(layers)), len(layers)

    def _upload(self, layers: tuple[int, ...]) -> int:
        table = self._uploaded.get(layers)
        if table is None:
            if any(not 0 <= layer < self._view.layers for layer in layers):
                raise self._outside(layers)
            bases = [self._view.bases[layer] for layer in layers]
            table = torch.tensor(bases, dtype=torch.int64, device=self._table.device)
            self._uploaded[layers] = table
        return table.data_ptr()

    def _outside(self, layers: Sequence[int]) -> IndexError:
        return IndexError(
            f"{self._view.pool}.{self._view.component}: layers {list(layers)} are not all among "
            f"the view's {self._view.layers}"
        )


def _compile(kernel: Kernel) -> Any:
    function: Any = kernels.short_tiles if kernel.short else kernels.long_tiles
    constants: Mapping[str, Any] = {"P": kernel.tiles, **dict(kernel.constants)}
    # Integers past 32 bits stand for 64-bit arguments; nothing is launched.
    values = [1 << 40] * (len(kernels.VARYING) + len(kernels.FIXED))
    return function.warmup(*values, **constants, grid=(1,), num_warps=kernel.warps)


def _arguments(  # noqa: PLR0917
    prepared: _PreparedView,
    layers: Sequence[int],
    pages: torch.Tensor,
    digests: torch.Tensor,
    unit: int,
    device: int,
) -> tuple[int, tuple[int, ...]]:
    """How many layers, and the varying arguments up to the ring's, once they are known to fit."""
    bases, rows = prepared.bases(layers)
    count = _count(pages, digests, rows, device)
    where = (digests.data_ptr(), digests.stride(0))
    return rows, (bases, pages.data_ptr(), pages.stride(0), unit, count, *where)


def _compiled_settle() -> Any:
    function: Any = kernels.settle_pages
    values = [1 << 40] * len(kernels.SETTLE)
    return function.warmup(*values, P=_SETTLED, LAYERS=_TOGETHER, grid=(1,), num_warps=4)


def _count(pages: torch.Tensor, digests: torch.Tensor, rows: int, device: int) -> int:
    """How many pages there are, once dtypes, shapes and devices are known to fit."""
    count = len(pages) if pages.dim() == 1 else -1
    if (
        digests.shape == (rows, count)
        and pages.dtype is digests.dtype is torch.int64
        and pages.get_device() == digests.get_device() == device
        and (count <= 1 or digests.stride(1) == 1)
    ):
        return count
    raise ValueError(
        f"page ids are {pages.dtype} {list(pages.shape)} on {pages.device} and digests "
        f"{digests.dtype} {list(digests.shape)} on {digests.device}: expected int64 [pages] and "
        f"int64 [{rows}, pages], contiguous in pages, on cuda:{device}"
    )
