"""The GPU digester: exact for any tile, ordered, and never in the way."""

import gc
import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from tests.tracer.digest.waiting import no_waiting

from hicache_dbg.tracer.digest import CpuDigester
from hicache_dbg.tracer.view import Run, View

if TYPE_CHECKING:
    from hicache_dbg.tracer.digest.gpu import GpuDigester

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

_SHAPES = {
    "one piece": ((Run(0, 8448, 8448),), 1, 8448, 0),
    "slots in one piece": ((Run(0, 132, 132),), 64, 8448, 0),
    "at an odd address": ((Run(0, 132, 132),), 64, 8448, 1),
    "at half a word": ((Run(0, 132, 132),), 64, 8448, 4),
    "slots at odd addresses": ((Run(1, 288, 288),), 3, 1024, 0),
    "slots apart": ((Run(0, 300, 288),), 3, 1024, 0),
    "an odd length": ((Run(0, 577, 577),), 3, 1736, 0),
    "rows of whole stripes": ((Run(0, 1536, 512),), 16, 24576, 0),
    "rows of part stripes": ((Run(0, 200, 132),), 5, 1040, 4),
    "rows in slots": ((Run(0, 512, 64, 3, 128),), 8, 4096, 0),
    "values and scales": ((Run(0, 576, 576), Run(36864, 8, 8)), 64, 37376, 0),
    "values and scales apart": ((Run(0, 600, 576), Run(38400, 16, 7)), 64, 40000, 0),
    "three runs of odd rows": ((Run(1, 33, 5, 3, 11), Run(700, 3, 3), Run(800, 7, 6)), 9, 1000, 0),
    "short": ((Run(0, 5, 5),), 3, 15, 3),
    "short rows": ((Run(0, 40, 4, 3, 12), Run(300, 4, 4)), 7, 400, 0),
    "exactly a block": ((Run(0, 1024, 1024),), 1, 1024, 0),
    "a block and a byte": ((Run(0, 1025, 1025),), 1, 1032, 0),
}
_LAYERS, _PAGES = 3, 7


class _Pair:
    """The same random tiles in host and in device memory."""

    def __init__(self, runs: tuple[Run, ...], slots: int, stride: int, shift: int) -> None:
        reach = max(run.offset + slots * run.slot_stride for run in runs)
        size = shift + _PAGES * stride + reach
        self.host = torch.randint(0, 256, (_LAYERS, size), dtype=torch.uint8)
        self.device = self.host.cuda()
        self.on_host, self.on_device = (
            View(
                pool="pool",
                component="kv",
                tier=tier,
                layout="layer_first",
                dtype="uint8",
                itemsize=1,
                bases=tuple(layer.data_ptr() + shift for layer in memory),
                page_stride=stride,
                page_span=stride,
                pages=_PAGES,
                slots_per_page=slots,
                runs=runs,
                device=str(memory.device),
                owner=memory,
            )
            for tier, memory in (("host", self.host), ("device", self.device))
        )

    def expected(self, pages: torch.Tensor, first: int = 0, last: int | None = None) -> np.ndarray:
        ids = pages.cpu().numpy()
        return CpuDigester().digest(self.on_host, range(_LAYERS), ids, first, last)


@pytest.fixture(scope="module")
def digester() -> "GpuDigester":
    """One for the module: what it compiled is used again."""
    from hicache_dbg.tracer.digest.gpu import GpuDigester

    return GpuDigester("cuda")


@pytest.fixture
def pair() -> _Pair:
    """Tiles of 8,448 bytes, 64 slots of 132."""
    return _Pair(*_SHAPES["slots in one piece"])


@pytest.fixture
def pages() -> torch.Tensor:
    """Page ids in no order, one of them twice."""
    return torch.tensor([6, 0, 3, 3, 1, 5], device="cuda")


def _out(pages: torch.Tensor) -> torch.Tensor:
    return torch.full((_LAYERS, len(pages)), -1, device="cuda")


def _unsigned(out: torch.Tensor) -> np.ndarray:
    return out.cpu().numpy().view(np.uint64)


@pytest.mark.parametrize("shape", _SHAPES)
def test_it_agrees_with_the_cpu(digester: "GpuDigester", pages: torch.Tensor, shape: str) -> None:
    """Whole pages and slot ranges of every shape have the digests that the CPU finds."""
    pair = _Pair(*_SHAPES[shape])
    slots = pair.on_device.slots_per_page
    for first, last in {(0, None), (0, 1), (slots - 1, slots), (slots // 2, slots)}:
        out = _out(pages)
        digester.digest(pair.on_device, range(_LAYERS), pages, first, last, out=out)
        assert (_unsigned(out) == pair.expected(pages, first, last)).all(), (first, last)


def test_every_length(digester: "GpuDigester", pages: torch.Tensor) -> None:
    """Tiles of 1 to 1,300 bytes, at every alignment, have the digests that the CPU finds."""
    pair = _Pair((Run(0, 1, 1),), 1400, 1401, 1)
    for size in range(1, 1301):
        out = _out(pages)
        first = size % 100
        digester.digest(pair.on_device, range(_LAYERS), pages, first, first + size, out=out)
        assert (_unsigned(out) == pair.expected(pages, first, first + size)).all(), size


def test_many_tiles(digester: "GpuDigester", pair: _Pair) -> None:
    """A launch of more pages than one program takes leaves none out."""
    pages = torch.randint(0, _PAGES, (5001,), device="cuda")
    out = _out(pages)
    digester.digest(pair.on_device, range(_LAYERS), pages, out=out)
    assert (_unsigned(out) == pair.expected(pages)).all()


def test_ids_may_count_slots(digester: "GpuDigester", pair: _Pair, pages: torch.Tensor) -> None:
    """Every 64th of the token ids, each 64 to a page, names the pages without another tensor."""
    tokens = (64 * pages[:, None] + torch.arange(64, device="cuda")).flatten()
    out, whole = _out(pages), _out(pages)
    digester.digest(pair.on_device, range(_LAYERS), tokens[::64], out=out, unit=64)
    digester.digest(pair.on_device, range(_LAYERS), pages, out=whole)
    assert torch.equal(out, whole)


def test_long_tiles_leave_the_l2_cache_to_others(digester: "GpuDigester", pair: _Pair) -> None:
    """Their loads say that L2 may evict first what they read; asynchronous loads would lose that."""
    digester.prepare(pair.on_device)
    for kernel, compiled in digester._compiled.items():
        code = compiled.asm["ptx"]
        assert "cp.async" not in code
        assert "L2::cache_hint" in code or not dict(kernel.constants)["UNIT"]


def test_some_layers(digester: "GpuDigester", pair: _Pair, pages: torch.Tensor) -> None:
    """Layers in any order, or a part of them, fill the rows in the order in which they were given."""
    expected = pair.expected(pages)
    for layers in ([2, 0], range(1, 3), [1]):
        out = torch.empty(len(layers), len(pages), dtype=torch.int64, device="cuda")
        digester.digest(pair.on_device, layers, pages, out=out)
        assert (_unsigned(out) == expected[list(layers)]).all()


def test_a_page_outside_is_not_followed(digester: "GpuDigester", pair: _Pair) -> None:
    """An id before or past the tensor has digest 0, and its neighbours theirs."""
    pages = torch.tensor([0, -1, _PAGES, 1 << 60, -(1 << 60), 1], device="cuda")
    out = _out(pages)
    digester.digest(pair.on_device, range(_LAYERS), pages, out=out)
    assert not out[:, 1:5].any()
    assert (_unsigned(out[:, ::5].contiguous()) == pair.expected(pages[::5])).all()


def test_a_capture_is_refused(digester: "GpuDigester", pair: _Pair, pages: torch.Tensor) -> None:
    """While the caller captures a graph nothing is enqueued, and the graph is not disturbed."""
    digester.prepare(pair.on_device)
    out, value = _out(pages), torch.zeros(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    gc.collect()  # graphs of other tests: one that is destroyed during a capture invalidates it
    with torch.cuda.graph(graph):
        value.add_(1)
        refused = digester.digest(pair.on_device, range(_LAYERS), pages, out=out)
    graph.replay()
    assert refused == "graph"
    assert (out == -1).all()
    assert value.item() == 1


def test_a_prepared_launch_neither_waits_nor_allocates(digester: "GpuDigester") -> None:
    """After the first launch of a geometry there is no wait and no allocation, on any stream."""
    pair, pages = _Pair(*_SHAPES["values and scales"]), torch.arange(_PAGES, device="cuda")
    digester.prepare(pair.on_device, partial=True)
    out, side = _out(pages), torch.cuda.Stream()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    with no_waiting():
        for last in (None, 17):
            where = (pair.on_device, range(_LAYERS), pages, 0, last)
            digester.digest(*where, out=out, stream=side.cuda_stream)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_a_side_stream_sees_the_copy_and_not_the_reuse(digester: "GpuDigester") -> None:
    """Between a late write and an early reuse, the side stream digests what was written."""
    pair, pages = _Pair(*_SHAPES["one piece"]), torch.arange(_PAGES, device="cuda")
    written, side = pair.device.clone(), torch.cuda.Stream()
    stream, expected, out = torch.cuda.current_stream(), pair.expected(pages), _out(pages)
    digester.prepare(pair.on_device)
    for _ in range(20):
        pair.device.zero_()
        torch.cuda._sleep(200_000)
        pair.device.copy_(written)
        side.wait_stream(stream)
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000)
        digester.digest(pair.on_device, range(_LAYERS), pages, out=out, stream=side.cuda_stream)
        stream.wait_stream(side)
        pair.device.zero_()
        assert (_unsigned(out) == expected).all()


def test_a_thread_that_never_used_the_device(
    digester: "GpuDigester", pair: _Pair, pages: torch.Tensor
) -> None:
    """A controller's own thread may be the first to launch there."""
    out = _out(pages)
    digester.prepare(pair.on_device)
    stream = torch.cuda.current_stream().cuda_stream

    def launch() -> None:
        digester.digest(pair.on_device, range(_LAYERS), pages, out=out, stream=stream)

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join(30)
    assert (_unsigned(out) == pair.expected(pages)).all()


def test_a_view_is_forgotten_with_its_last_user(
    digester: "GpuDigester", pages: torch.Tensor
) -> None:
    """A digester does not keep a pool's memory alive, nor its own tables beyond that."""
    pair = _Pair(*_SHAPES["one piece"])
    digester.digest(pair.on_device, [2, 0], pages, out=_out(pages)[:2])
    view, memory = id(pair.on_device), weakref.ref(pair.device)
    assert view in digester._views
    del pair
    gc.collect()
    assert memory() is None
    assert view not in digester._views


def test_what_does_not_fit_is_refused(
    digester: "GpuDigester", pair: _Pair, pages: torch.Tensor
) -> None:
    """A wrong dtype, shape, device or layer is an error that says what was given."""
    where = (pair.on_device, range(_LAYERS))
    for wrong_pages, wrong_out in (
        (pages.int(), _out(pages)),
        (pages.cpu(), _out(pages)),
        (pages, _out(pages)[:2]),
        (pages, _out(pages).float()),
        (pages, _out(pages).cpu()),
        (pages, _out(pages).T.contiguous().T),
    ):
        with pytest.raises(ValueError, match=r"expected int64 \[pages\] and int64 \[3, pages\]"):
            digester.digest(*where, wrong_pages, out=wrong_out)
    for layers in (range(1, 4), [0, 3], [-1]):
        with pytest.raises(IndexError, match="are not all among the view's 3"):
            digester.digest(pair.on_device, layers, pages, out=_out(pages)[: len(layers)])
    with pytest.raises(ValueError, match="the GPU cannot read tiles on cpu"):
        digester.prepare(pair.on_host)


def test_the_torch_fallback_agrees(pair: _Pair, pages: torch.Tensor) -> None:
    """On a CUDA device without Triton the same digests come from torch operations."""
    from hicache_dbg.tracer.digest.torch_digester import TorchDigester

    out = _out(pages)
    TorchDigester("cuda").digest(pair.on_device, range(_LAYERS), pages, 1, 60, out=out)
    assert (_unsigned(out) == pair.expected(pages, 1, 60)).all()
