"""The copy kernel's source, compiled for the CPU, on pools of every kind."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pools.copying import COMBINATIONS, KINDS, WAYS, Combination, Way, name_of
from tests.pools.staging import PageIds, Staged, page_ids

from hicache_dbg.pools import cuda_gather, cuda_kernel, cuda_runs, cuda_split
from hicache_dbg.pools.cuda_kernel import PieceKernel
from hicache_dbg.pools.cuda_split import SplitPiece
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.plan import Move, Piece

OPTIONS = ("-std=c++17", "-O1", "-w", "-shared", "-fPIC")
COMPILER = shutil.which("g++") or shutil.which("c++")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")

#: What CUDA C++ adds to C++, for one thread at a time.
SHIM = """
struct uint4 { unsigned x, y, z, w; };
struct uint2 { unsigned x, y; };
struct Where { unsigned x; };
static Where threadIdx, blockIdx, blockDim, gridDim;
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(threads)
template <class T> static T __ldcg(const T* at) { return *at; }
#include SOURCE
extern "C" void run(const Move* move, unsigned grid, unsigned block) {
    gridDim.x = grid;
    blockDim.x = block;
    for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < block; threadIdx.x++) move_chunks(*move);
}
"""


class _OnThisProcessor:
    """A kernel that runs synchronously."""

    def __init__(self, run: Callable[..., None]) -> None:
        self._run = run

    def launch(self, grid: int, block: int, stream: int, argument: ctypes.Structure) -> None:
        assert stream == 0
        self._run(ctypes.byref(argument), grid, block)


class _NoStream:
    cuda_stream = 0
    device = torch.device("cpu")


NO_STREAM = cast("torch.cuda.Stream", _NoStream())


class _Ids:
    """Ids in memory that the kernel reads directly; on the CPU no upload is needed."""

    def __init__(self, size: int, _: object) -> None:
        self.size = size
        self._pairs = np.full((size, 2), 1 << 30, dtype=np.int32)
        self.place = self._pairs.ctypes.data

    def upload(self, move: Move, ids: range) -> None:
        """Make only the ids of this range available, so that reading others is noticed."""
        part = slice(ids.start, ids.stop)
        self._pairs[part] = np.stack([move.host[part], move.device[part]], axis=1)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., _OnThisProcessor]:
    """Compiles the kernel's source with macros, once per set of them."""
    folder = tmp_path_factory.mktemp("kernel")
    shim = folder / "shim.cc"
    shim.write_text(SHIM)

    @cache
    def kernel(
        source: Path, name: str, architecture: str, macros: tuple[str, ...]
    ) -> _OnThisProcessor:
        assert (name, architecture) == ("move_chunks", "here")
        library = folder / f"{abs(hash(macros))}.so"
        defined = [f"-D{macro}" for macro in (*macros, f'SOURCE="{source}"')]
        subprocess.run(
            [str(COMPILER), *OPTIONS, *defined, "-o", str(library), str(shim)],
            check=True,
            capture_output=True,
        )
        return _OnThisProcessor(ctypes.CDLL(str(library)).run)

    return kernel


@pytest.fixture
def here(build: Callable[..., _OnThisProcessor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run launches on the CPU, whose memory holds both ends."""
    monkeypatch.setattr(cuda_kernel, "kernel_of", build)
    monkeypatch.setattr(cuda_kernel, "_architecture", lambda _: "here")
    monkeypatch.setattr(cuda_kernel, "_Table", _Ids)
    monkeypatch.setattr(cuda_kernel, "THREADS", 64)
    monkeypatch.setattr(cuda_kernel, "AHEAD", 2)


def carry_out(move: Move, *, to_host: bool, cut: int) -> None:
    """Carry out all layers of a move, with its ids in two launches."""
    for piece in move.pieces:
        kernel = PieceKernel(move, piece, NO_STREAM, to_host=to_host)
        layers = range(piece.device.buffer.layers)
        for ids in (slice(cut), slice(cut, None)):
            kernel.launch(layers, ids)


def at_a_line(size: int) -> npt.NDArray[np.uint8]:
    """Return memory aligned to 128 bytes, as a device's is."""
    memory = np.zeros(size + 128, dtype=np.uint8)
    start = -memory.ctypes.data % 128
    return memory[start : start + size]


KERNEL = [item for item in COMBINATIONS if item[2] == "kernel"]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("combination", KERNEL, ids=name_of)
@settings(max_examples=4, deadline=None)
@given(ids=page_ids(5, 6), way=st.sampled_from(WAYS), cut=st.integers(0, 3))
def test_pages_move_whole_and_nothing_beside_them(
    combination: Combination, ids: PageIds, way: Way, cut: int
) -> None:
    """Each layout's pages arrive byte for byte, with any word and tile size that the strides allow."""
    staged = Staged.of(combination, way, ids, 3, (5, 6), seed=1)
    carry_out(staged.move, to_host=way == "backup", cut=cut)
    staged.assert_moved()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "combination", [item for item in KERNEL if not item[0].endswith("state")], ids=name_of
)
@settings(max_examples=3, deadline=None)
@given(data=st.data(), way=st.sampled_from(WAYS))
def test_slots_move_alone(combination: Combination, data: st.DataObject, way: Way) -> None:
    """Single slots move all their runs and no byte of their neighbours."""
    slots = KINDS[combination[0]](1).slots_per_page
    host = data.draw(st.permutations(range(3 * slots)))[:4]
    device = data.draw(st.permutations(range(4 * slots)))[: len(host)]
    ids = host[: len(device)], device
    staged = Staged.of(combination, way, ids, 2, (3, 4), seed=2, single=True)
    carry_out(staged.move, to_host=way == "backup", cut=1)
    staged.assert_moved()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "combination", [item for item in COMBINATIONS if item[1] != "layer_first"], ids=name_of
)
@settings(max_examples=6, deadline=None)
@given(ids=page_ids(7, 8), pages=st.integers(1, 3), chunk=st.sampled_from([96, 1000, 1 << 30]))
def test_pages_gathered_in_slots_arrive_whole(
    combination: Combination, ids: PageIds, pages: int, chunk: int
) -> None:
    """Rows that are gathered in staging slots and sent by page arrive like rows moved one by one."""
    staged = Staged.of(combination, "backup", ids, 3, (7, 8), seed=3)
    for piece in staged.move.pieces:
        size = pages * piece.host.page
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cuda_gather, "SLOT_BYTES", size)
            patch.setattr(cuda_gather, "LONG_PAGE_BYTES", 1)
            patch.setattr(cuda_gather, "LEAST_BYTES", 1)
            patch.setattr(cuda_runs, "CHUNK_BYTES", chunk)
            assert cuda_gather.is_gathered(staged.move, piece, (0, 1, 2))
            assert not cuda_gather.is_gathered(staged.move, piece, (0, 1))
            gather(staged.move, piece, size, chunk)
    staged.assert_moved()


def gather(move: Move, piece: Piece, size: int, chunk: int) -> None:
    """Gather all layers in staging slots of ``size`` bytes and send each; no slot overflows.

    A run that is sent crosses no border between registered chunks of host memory.
    """
    slots = at_a_line(cuda_gather.SLOTS * size + 128)
    slots[-128:] = 0xA5
    kernel = PieceKernel(cuda_gather.in_slots(move, piece), piece, NO_STREAM, to_host=True)
    base = piece.host.buffer.tensors[0].data_ptr()
    for step in cuda_gather.steps(move, piece, slots.ctypes.data):
        kernel.launch(range(3), step.ids, shift=step.shift)
        for target, source, length in zip(*step.runs, strict=True):
            assert (target - base) // chunk == (target - base + length - 1) // chunk
            ctypes.memmove(int(target), int(source), int(length))
    assert (slots[-128:] == 0xA5).all()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("combination", KERNEL, ids=name_of)
@settings(max_examples=4, deadline=None)
@given(ids=page_ids(5, 6), way=st.sampled_from(WAYS), share=st.integers(0, 100))
def test_what_an_engine_takes_the_kernel_leaves(
    combination: Combination, ids: PageIds, way: Way, share: int
) -> None:
    """Whatever the copy engine's share, each byte of the pages is moved once."""
    staged = Staged.of(combination, way, ids, 3, (5, 6), seed=4)
    sent = 0

    def copy(target: Ids, source: Ids, sizes: Ids, _: int) -> None:
        nonlocal sent
        for to, start, size in zip(target.tolist(), source.tolist(), sizes.tolist(), strict=True):
            ctypes.memmove(to, start, size)
            sent += size

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_split, "copy_batch", copy)
        patch.setattr(cuda_split, "engine_stream", lambda *_: NO_STREAM)
        patch.setattr(cuda_split, "LEAST_BYTES", 1)
        patch.setattr(cuda_split, "BACKUP_SHARES", ((1, share),))
        patch.setattr(cuda_split, "LOAD_SHARES", ((1, share),))
        for piece in staged.move.pieces:
            split = SplitPiece(staged.move, piece, [NO_STREAM], to_host=way == "backup")
            split.launch((0, 1))
            split.launch((2,))
    page_bytes = staged.mirror.device.geometry.page_bytes()
    assert sent == len(ids[0]) * share // 100 * 3 * page_bytes
    staged.assert_moved()


@pytest.mark.usefixtures("here")
def test_more_slots_than_ids_can_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are 32 bits on the device: a pool too large for them is refused, not copied wrongly."""
    combination = ("c4", *KERNEL[0][1:])
    move = Staged.of(combination, "backup", ([0], [0]), 1, (5, 6), seed=1).move
    monkeypatch.setattr(cuda_kernel, "_INT32_MAX", 6 * KINDS["c4"](1).slots_per_page - 1)
    with pytest.raises(ValueError, match="kv: 18 slots, at most 17 can be named"):
        PieceKernel(move, move.pieces[0], NO_STREAM, to_host=True)
