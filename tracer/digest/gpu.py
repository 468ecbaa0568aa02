"""XXH3-64 of tiles in CUDA memory, many layers and pages in one launch.

No call here waits for the device, copies an index to the host or, once a geometry is prepared,
allocates. A page id outside the view is never dereferenced: its digest is 0.
"""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import torch

from hicache_dbg.tracer.digest import kernels
from hicache_dbg.tracer.digest.launch import Launcher, PreparedLaunch
from hicache_dbg.tracer.digest.plan import Kernel, Reading, reading_of
from hicache_dbg.tracer.view import View

if TYPE_CHECKING:
    from hicache_dbg.tracer.digest.watches import Watches

__all__ = ["GRAPH", "GpuDigester"]

#: The refusal while the caller is capturing a graph. Equals ``SkipReason.GRAPH``.
GRAPH: Final = "graph"

#: The ``job`` argument of a launch that settles nothing.
_NO_JOB = 0
#: The position of the ``count`` argument, the number of pages.
_COUNT = kernels.VARYING.index("count")
#: Programs, of one warp each, of a launch that leaves the device to a copy beside it. On an H200 they
#: digest about 500 GB/s alone, and 80 GB/s or more beside copies over a bus of 55 GB/s.
SPARING_PROGRAMS = 300
#: How many digests a thread reads together when it settles pages, and of how many layers at most.
_A_THREAD, _TOGETHER = 4, 64


class GpuDigester:
    """Digests tiles in the memory of one CUDA device.

    Call it from any thread, whatever its current device. Tensors, and ``view.owner``, must stay
    alive until the stream is past the launch.

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
        """Compile and upload what digests of ``view`` need, which takes seconds the first time.

        Args:
            view: A view on this device; what is prepared lives as long as it does.
            partial: Whether to prepare for slot ranges as well as for whole pages.

        Raises:
            ValueError: If the view is on another device, or its pages are 2 GiB or longer.
        """
        prepared = self._prepared(view)
        prepared.launch(0, None)
        if partial and view.slots_per_page > 1:
            for last in {1, view.slots_per_page - 1}:
                prepared.launch(0, last)

    def watches(self) -> "Watches":
        """Return what watches whole operations on this device."""
        from hicache_dbg.tracer.digest.watches import Watches

        return Watches(self)

    def send(self, target: int, source: int, words: int, stream: int) -> None:
        """Enqueue a copy of ``words`` 64-bit words between addresses on the device or in pinned memory.

        A kernel does it: a copy engine would run it behind all the copies queued there.
        """
        a_program = kernels.WORDS_A_PROGRAM
        if self._sender is None:
            sent: Any = kernels.sent
            with torch.cuda.device(self.device):
                kernel = sent.warmup(*(1 << 40,) * 3, WORDS=a_program, grid=(1,), num_warps=4)
                self._sender = Launcher(kernel, 3, ())
        self._sender(-(-words // a_program), 1, stream, source, target, words)

    def watched_launch(
        self, view: View, layers: Sequence[int], ids: int, out: torch.Tensor, job: int
    ) -> PreparedLaunch:
        """Prepare a launch of a watched operation, to be called with a stream and a number of pages.

        Args:
            view: Where the tiles are.
            layers: Indices into ``view.bases``.
            ids: Address of the page ids, int64 [pages], on the device or pinned.
            out: Where the digests go, int64 [layers, pages] on this device, contiguous in pages.
            job: For an operation's last launch, the address of its job on this device, see
                :data:`hicache_dbg.tracer.digest.job.JOB`; 0 for the launches before.
        """
        prepared = self._prepared(view)
        launcher, tiles = prepared.watched(settles=job != _NO_JOB)
        bases, rows = prepared.bases(layers)
        where = (out.data_ptr(), out.stride(0), job)
        return launcher.prepared(tiles, rows, _COUNT, bases, ids, 1, 1, 0, *where)

    def whole_launch(self, view: View) -> "WholePages":
        """Prepare launches that digest whole pages of all of a view's layers."""
        prepared = self._prepared(view)
        every, tiles = prepared.launch(0, None)
        sparing, _ = prepared.looping()
        bases, rows = prepared.bases(range(view.layers))
        launch = tiles, rows, _COUNT, bases, 0, 1, 1, 0, 0, 0, _NO_JOB
        columns = max(1, SPARING_PROGRAMS // rows)
        return WholePages(
            bases, every.prepared(*launch), sparing.prepared(*launch, columns=columns)
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
            layers: Indices into ``view.bases``; a ``range`` of step 1 needs no upload.
            pages: Page ids, int64 on this device, one dimension, any stride. The kernel reads them when
                it runs.
            first: The first slot to digest.
            last: The slot after the last one; the end of the page if left out.
            out: int64 [layers, pages] on this device, contiguous in pages; receives the digests' bits.
                (Pinned memory would work too, but programs then queue for the bus, which made a
                concurrent copy 7 % slower.)
            unit: How many ids a page has: page ``id // unit`` is digested.
            stream: The raw handle of the stream to enqueue on; the current stream if left out.

        Returns:
            None, or the reason why nothing was enqueued.

        Raises:
            ValueError: If a tensor's dtype, shape or device, or the slot range, does not fit.
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
            # What is kept must not keep the view's tensors alive.
            described = replace(view, owner=None)
            prepared = _PreparedView(described, self._table, self._compiled)
            self._views[id(view)] = prepared
            weakref.finalize(view, self._views.pop, id(view), None).atexit = False
        return prepared


class WholePages(NamedTuple):
    """Launches that digest whole pages of all layers of one view; nothing is checked.

    Each is called with a stream, the number of pages and the launch's first seven arguments, see
    :data:`hicache_dbg.tracer.digest.kernels.VARYING`; from one thread at a time.

    Attributes:
        bases: The device address of the layers' base addresses.
        every: Digests at full speed.
        sparing: Digests with few programs, slowly, beside a copy that it shall not slow down.
    """

    bases: int
    every: PreparedLaunch
    sparing: PreparedLaunch


class _PreparedView:
    """One view's compiled kernels and its tables on the device."""

    def __init__(self, view: View, table: torch.Tensor, compiled: dict[Kernel, Any]) -> None:
        self.launches: dict[tuple[int, int | None], tuple[Launcher, int]] = {}
        self._watched: dict[bool, tuple[Launcher, int]] = {}
        self._view, self._table, self._compiled = view, table, compiled
        self._uploaded: dict[tuple[int, ...], torch.Tensor] = {}
        self._every_base = self._upload(tuple(range(view.layers)))

    def launch(self, first: int, last: int | None) -> tuple[Launcher, int]:
        """Return the launcher for a slot range, and how many tiles one of its programs takes."""
        made = self.launches[first, last] = self._made(reading_of(self._view, first, last))
        return made

    def looping(self) -> tuple[Launcher, int]:
        """Return the same for whole pages, by any number of programs."""
        return self._made(reading_of(self._view, loops=True))

    def watched(self, *, settles: bool) -> tuple[Launcher, int]:
        """Return the same for a watched operation, whose last launch ``settles`` its pages."""
        known = self._watched.get(settles)
        if known is None:
            reading = reading_of(self._view)
            together = _together(reading.kernel) if settles else 0
            known = self._watched[settles] = self._made(reading, together)
        return known

    def _made(self, reading: Reading, together: int = 0) -> tuple[Launcher, int]:
        view, kernel = self._view, reading.kernel.settling(together)
        slots = (reading.offset, reading.first, reading.slots, reading.size)
        fixed = (self._table.data_ptr(), view.pages, view.page_stride, *slots)
        with torch.cuda.device(self._table.device):  # a kernel is loaded onto the current one
            if kernel not in self._compiled:
                self._compiled[kernel] = _compile(kernel)
            return Launcher(self._compiled[kernel], len(kernels.VARYING), fixed), kernel.tiles

    def bases(self, layers: Sequence[int]) -> tuple[int, int]:
        """Return the device address of the base addresses of ``layers``, and how many there are."""
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
    tiles: Any = kernels.tiles
    constants: Mapping[str, Any] = {"P": kernel.tiles, **dict(kernel.constants)}
    # Integers beyond 32 bits make 64-bit arguments; nothing is launched.
    values = [1 << 40] * (len(kernels.VARYING) + len(kernels.FIXED))
    return tiles.warmup(*values, **constants, grid=(1,), num_warps=kernel.warps)


def _arguments(  # noqa: PLR0917
    prepared: _PreparedView,
    layers: Sequence[int],
    pages: torch.Tensor,
    digests: torch.Tensor,
    unit: int,
    device: int,
) -> tuple[int, tuple[int, ...]]:
    """Check the arguments; return the number of layers and the varying arguments before the job."""
    bases, rows = prepared.bases(layers)
    count = _count(pages, digests, rows, device)
    where = (digests.data_ptr(), digests.stride(0))
    return rows, (bases, pages.data_ptr(), pages.stride(0), unit, count, *where)


def _together(kernel: Kernel) -> int:
    """Return how many layers of a program's pages its threads read together: a power of two."""
    return max(1, min(_TOGETHER, _A_THREAD * 32 * kernel.warps // kernel.tiles))


def _count(pages: torch.Tensor, digests: torch.Tensor, rows: int, device: int) -> int:
    """Check dtypes, shapes and devices; return the number of pages."""
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
