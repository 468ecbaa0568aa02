"""The CPU digester: exact over any geometry, in place, and strict about what it is asked."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import xxhash
from hypothesis import given
from tests.tracer.digest.geometry import Tiles, tiles

from hicache_dbg.tracer.digest import CpuDigester, xxh3
from hicache_dbg.tracer.view import Run, View


@given(tiles())
def test_package_reference_and_digester_agree(case: Tiles) -> None:
    """The digester, the plain reference and the xxhash package see the same bytes alike."""
    got = CpuDigester().digest(case.view, case.layers, case.pages, case.first, case.last)
    assert got.dtype == np.uint64
    assert got.tolist() == case.expected()
    tile = case.tile(case.layers[0], int(case.pages[0]))
    assert xxh3.digest(tile) == got[0, 0]


@given(tiles())
def test_bytes_outside_the_tile_do_not_count(case: Tiles) -> None:
    """Padding and slots outside the range may change without changing a digest."""
    before = CpuDigester().digest(case.view, case.layers, case.pages, case.first, case.last)
    touched = np.zeros(case.memory.shape, bool)
    for layer in case.layers:
        for page in case.pages.tolist():
            base = case.starts[layer] + page * case.view.page_stride
            for at, size in case.view.segments(case.first, case.last):
                touched[base + at : base + at + size] = True
    case.memory[~touched] ^= 0xFF
    after = CpuDigester().digest(case.view, case.layers, case.pages, case.first, case.last)
    assert (before == after).all()


@pytest.fixture
def view() -> View:
    """Two layers of three pages of four slots, in one piece."""
    memory = np.zeros((2, 3, 4, 300), np.uint8)
    bases = (memory.ctypes.data, memory[1].ctypes.data)
    return View(
        *("pool", "kv", "host", "layer_first", "uint8", 1, bases, 1200, 1200, 3, 4),
        runs=(Run(0, 300, 300),),
        owner=memory,
    )


def test_more_pages_than_a_batch_holds() -> None:
    """Tiles in pieces keep their order over many batches, and layers that interleave stay apart."""
    memory = np.random.default_rng(3).integers(0, 256, (700, 8, 2, 512), np.uint8)
    bases = tuple(memory[0, 0, layer].ctypes.data for layer in range(2))
    view = View(
        *("pool", "kv", "host", "page_first", "uint8", 1, bases, 8192, 8192 - 512, 700, 8),
        runs=(Run(0, 1024, 512),),
        owner=memory,
    )
    pages = np.random.default_rng(4).permutation(700)
    got = CpuDigester().digest(view, (1, 0), pages)
    wanted = [
        [xxhash.xxh3_64_intdigest(memory[p, :, layer].tobytes()) for p in pages] for layer in (1, 0)
    ]
    assert got.tolist() == wanted


def test_many_tiles_are_told_in_the_order_they_were_asked_for() -> None:
    """However they are read: pages in any order, and some more than once."""
    memory = np.random.default_rng(5).integers(0, 256, (2, 9, 300), np.uint8)
    bases = (memory.ctypes.data, memory[1].ctypes.data)
    view = View(
        *("pool", "kv", "host", "layer_first", "uint8", 1, bases, 300, 300, 9, 1),
        runs=(Run(0, 300, 300),),
        owner=memory,
    )
    pages = np.random.default_rng(6).integers(0, 9, 1200)
    digests = [[xxhash.xxh3_64_intdigest(tile.tobytes()) for tile in layer] for layer in memory]
    got = CpuDigester().digest(view, (1, 0), pages)
    assert got.tolist() == [[digests[layer][page] for page in pages] for layer in (1, 0)]


def test_nothing_asked_is_nothing_answered(view: View) -> None:
    """No layers or no pages give an empty array of that shape."""
    none = np.array([], np.int64)
    assert CpuDigester().digest(view, [0, 1], none).shape == (2, 0)
    assert CpuDigester().digest(view, [], np.array([1])).shape == (0, 1)


@pytest.mark.parametrize("page", [-1, 3, 1 << 40])
def test_a_page_outside_is_refused(view: View, page: int) -> None:
    """A page that the tensor does not have is never read."""
    with pytest.raises(IndexError, match=f"page {page} is outside the host view's 3 pages"):
        CpuDigester().digest(view, [0], np.array([0, page]))


@pytest.mark.parametrize("layer", [-1, 2])
def test_a_layer_outside_is_refused(view: View, layer: int) -> None:
    """A layer that the view does not have is never read."""
    with pytest.raises(IndexError, match=f"layer {layer} is outside the view's 2 layers"):
        CpuDigester().digest(view, [layer], np.array([0]))


@pytest.mark.parametrize(("first", "last"), [(0, 0), (2, 1), (-1, 2), (0, 5)])
def test_a_range_outside_is_refused(view: View, first: int, last: int) -> None:
    """An empty range of slots, or one past the page, is refused with both numbers."""
    with pytest.raises(ValueError, match=f"slots {first}..{last} are no range of a page of 4"):
        CpuDigester().digest(view, [0], np.array([0]), first, last)


def test_page_ids_have_one_dimension(view: View) -> None:
    """A table of page ids is not taken for a list."""
    with pytest.raises(ValueError, match="expected one dimension"):
        CpuDigester().digest(view, [0], np.array([[0]]))


def test_device_memory_is_refused(view: View) -> None:
    """Addresses of another device are not followed on the CPU."""
    with pytest.raises(ValueError, match="cannot read tiles on cuda:0"):
        CpuDigester().digest(replace(view, device="cuda:0"), [0], np.array([0]))


def test_importing_it_loads_neither_torch_nor_triton() -> None:
    """A process that digests on the CPU stays small."""
    code = (
        "import sys, hicache_dbg.tracer.digest;"
        "print(sorted({'torch', 'triton', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
