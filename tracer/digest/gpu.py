"""XXH3-64 of tiles in CUDA memory: one small launch for many layers and pages, and nothing else.

No call here waits for the device, reads an index to the host or, once its geometry has been
prepared, allocates. A page id outside the view is never followed: its digest is 0.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from hicache_dbg.tracer.digest import kernels
from hicache_dbg.tracer.digest.launch import Launcher, PreparedLaunch
from hicache_dbg.tracer.digest.plan import Kernel, Pace, Reading, reading_of
from hicache_dbg.tracer.view import View

if TYPE_CHECKING:
    from hicache_dbg.tracer.digest.watches import Watches

__all__ = ["GRAPH", "GpuDigester"]

#: Why a launch was refused: the caller is capturing a graph. Equals ``SkipReason.GRAPH``.
GRAPH: Final = "graph"

#: The argument job of a launch that settles nothing.
_NO_JOB = 0
#: The argument that is how many pages there are.
_COUNT = kernels.VARYING.index("count")
#: Digests that a thread looks at together where a page is settled, and layers at most.
_A_THREAD, _TOGETHER = 4, 64


class GpuDigester:
    """Digests tiles that lie in the memory of one CUDA device.

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
        self._sender: Launcher | None = None

    def prepare(self, view: View, *, partial: bool = False) -> None:
        """Compile and upload what digests of ``view`` need. Takes seconds the first time.

        Args:
            view: A view on this device; it is kept until :meth:`forget`.
            partial: Prepare for slot ranges as well as for whole pages.

        Raises:
            ValueError: If the view is on another device, or its pages are 2 GiB or longer.
        """
        prepared = self._prepared(view)
        prepared.launch(0, None)
        if partial and view.slots_per_page > 1:
            for last in {1, view.slots_per_page - 1}:
                prepared.launch(0, last)

    def watches(self) -> "Watches":
        """What follows whole operations on this device."""
        from hicache_dbg.tracer.digest.watches import Watches

        return Watches(self)

    def send(self, target: int, source: int, words: int, stream: int) -> None:
        """Enqueue a copy of ``words`` words from the device, by address; to pinned memory, too.

        A copy engine would have it wait behind all copies that are queued there.
        """
        a_program = kernels.WORDS_A_PROGRAM
        if self._sender is None:
            sent: Any = kernels.sent
            kernel = sent.warmup(*(1 << 40,) * 3, WORDS=a_program, grid=(1,), num_warps=4)
            self._sender = Launcher(kernel, 3, ())
        self._sender(-(-words // a_program), 1, stream, source, target, words)

    def forget(self, view: View) -> None:
        """Let go of a view whose tensors are to be freed."""
        self._views.pop(id(view), None)

    def watched_launch(  # noqa: PLR0917
        self,
        view: View,
        layers: Sequence[int],
        ids: int,
        out: torch.Tensor,
        job: int,
        pace: Pace,
    ) -> PreparedLaunch:
        """A launch of a watched operation; it is called with a stream and how many pages there are.

        Args:
            view: Where the tiles are.
            layers: Indices into ``view.bases``.
            ids: Address of the page ids, int64 [pages], on the device or pinned.
            out: Where the digests go, int64 [layers, pages] on this device, contiguous in pages.
            job: For an operation's last launch the address of its words on this device, see
                :data:`hicache_dbg.tracer.digest.job.JOB`; 0 for those before.
            pace: What it is made for.
        """
        prepared = self._prepared(view)
        launcher, tiles = prepared.watched(pace, settles=job != _NO_JOB)
        bases, rows = prepared.bases(layers)
        where = (out.data_ptr(), out.stride(0), job)
        return launcher.prepared(tiles, rows, _COUNT, bases, ids, 1, 1, 0, *where)

    def whole_launch(self, view: View) -> "WholePages":
        """A launch that digests whole pages of all of a view's layers."""
        prepared = self._prepared(view)
        launcher, tiles = prepared.launches.get((0, None)) or prepared.launch(0, None)
        return WholePages(launcher, tiles, *prepared.bases(range(view.layers)))

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
        if torch.cuda.is_current_stream_capturing():
            return GRAPH
        prepared = self._views.get(id(view)) or self._prepared(view)
        launch, tiles = prepared.launches.get((first, last)) or prepared.launch(first, last)
        rows, arguments = _arguments(prepared, layers, pages, out, unit, self._index)
        if stream is None:
            stream = torch._C._cuda_getCurrentRawStream(self._index)  # noqa: SLF001 (0.2 us, not 8)
        if len(pages) and rows:
            launch(-(-len(pages) // tiles), rows, stream, *arguments, _NO_JOB)
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


class WholePages:
    """Digests whole pages of all layers of one view, as :meth:`GpuDigester.digest`; nothing is checked.

    ``rows`` is the number of layers, ``bases`` the address of their base addresses. ``every`` is the
    launch of all layers, for one thread at a time: it is given its first seven arguments each time.
    """

    __slots__ = ("_launch", "_tiles", "bases", "every", "rows")

    def __init__(self, launcher: Launcher, tiles: int, bases: int, rows: int) -> None:
        self._launch, self._tiles, self.bases, self.rows = launcher, tiles, bases, rows
        self.every = launcher.prepared(tiles, rows, _COUNT, bases, 0, 1, 1, 0, 0, 0, _NO_JOB)

    def some(  # noqa: PLR0917
        self, layers: range, stream: int, ids: int, step: int, unit: int, count: int, out: int
    ) -> None:
        """Enqueue digests of ``count`` pages of ``layers``, which follow on each other.

        Args:
            layers: Which.
            stream: A raw handle.
            ids: Address on the device of the first page's id, int64.
            step: From one page's id to the next, in elements.
            unit: How many ids a page has: page ``id // unit`` is digested.
            count: How many pages; not 0.
            out: Address of int64 [every layer, count].
        """
        first = layers.start
        where = (self.bases + 8 * first, ids, step, unit, count, out + 8 * first * count, count)
        self._launch(-(-count // self._tiles), len(layers), stream, *where, _NO_JOB)


class _PreparedView:
    """What is on the device, and compiled, for one view."""

    def __init__(self, view: View, table: torch.Tensor, compiled: dict[Kernel, Any]) -> None:
        self.launches: dict[tuple[int, int | None], tuple[Launcher, int]] = {}
        self._watched: dict[tuple[Pace, bool], tuple[Launcher, int]] = {}
        self._view, self._table, self._compiled = view, table, compiled
        self._uploaded: dict[tuple[int, ...], torch.Tensor] = {}
        self._every_base = self._upload(tuple(range(view.layers)))

    def launch(self, first: int, last: int | None) -> tuple[Launcher, int]:
        """The launcher for a slot range, and how many tiles one of its programs takes."""
        made = self.launches[first, last] = self._made(reading_of(self._view, first, last))
        return made

    def watched(self, pace: Pace, *, settles: bool) -> tuple[Launcher, int]:
        """The same for whole pages of a watched operation, whose last launch ``settles`` them."""
        known = self._watched.get((pace, settles))
        if known is None:
            reading = reading_of(self._view, pace=pace)
            together = _together(reading.kernel) if settles else 0
            known = self._watched[pace, settles] = self._made(reading, together)
        return known

    def _made(self, reading: Reading, together: int = 0) -> tuple[Launcher, int]:
        view, kernel = self._view, reading.kernel.settling(together)
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
    """How many layers, and the varying arguments up to the job, once they are known to fit."""
    bases, rows = prepared.bases(layers)
    count = _count(pages, digests, rows, device)
    where = (digests.data_ptr(), digests.stride(0))
    return rows, (bases, pages.data_ptr(), pages.stride(0), unit, count, *where)


def _together(kernel: Kernel) -> int:
    """How many layers of a program's pages its threads look at together: a power of two."""
    return max(1, min(_TOGETHER, _A_THREAD * 32 * kernel.warps // kernel.tiles))


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
