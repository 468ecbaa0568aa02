"""The copy kernel itself, its source built for this machine's processor, on pools of every kind."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pools.copying import (
    COMBINATIONS,
    Combination,
    Snapshot,
    assert_equal,
    canaries_live,
    mirror_of,
    name_of,
    slot_places,
    snapshot,
)

from hicache_dbg.pools import cuda_gather, cuda_kernel, cuda_runs, cuda_split
from hicache_dbg.pools.cuda_kernel import PieceKernel
from hicache_dbg.pools.cuda_split import SplitPiece
from hicache_dbg.pools.host import Mirror
from hicache_dbg.pools.indices import Ids, Indices
from hicache_dbg.pools.operation import PoolCopy
from hicache_dbg.pools.plan import Move
from hicache_dbg.pools.validate import move_of

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
    """A kernel that is run, not queued."""

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
    """Ids where the kernel reads them; on this processor they need not go anywhere."""

    def __init__(self, size: int, _: object) -> None:
        self.size = size
        self._pairs = np.full((size, 2), 1 << 30, dtype=np.int32)
        self.place = self._pairs.ctypes.data

    def upload(self, move: Move, ids: range) -> None:
        """Only the ids of this range are there; others would be noticed."""
        part = slice(ids.start, ids.stop)
        self._pairs[part] = np.stack([move.host[part], move.device[part]], axis=1)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., _OnThisProcessor]:
    """Builds the kernel's source with macros, once for each set of them."""
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
    """Launches run on this processor, whose memory is what both ends are in."""
    monkeypatch.setattr(cuda_kernel, "kernel_of", build)
    monkeypatch.setattr(cuda_kernel, "_architecture", lambda _: "here")
    monkeypatch.setattr(cuda_kernel, "_Table", _Ids)
    monkeypatch.setattr(cuda_kernel, "THREADS", 64)
    monkeypatch.setattr(cuda_kernel, "AHEAD", 2)


def carry_out(move: Move, *, to_host: bool, cut: int) -> None:
    """All layers of a move, its ids in two launches."""
    for piece in move.pieces:
        kernel = PieceKernel(move, piece, NO_STREAM, to_host=to_host)
        layers = range(piece.device.buffer.layers)
        for ids in (slice(cut), slice(cut, None)):
            kernel.launch(layers, ids)


def move_between(mirror: Mirror, host: Indices, device: Indices, combination: Combination) -> Move:
    """A validated move."""
    layers = tuple(range(mirror.device.geometry.layers))
    return move_of(PoolCopy(mirror, host, device, host.single, combination[2], layers))


def expected(
    mirror: Mirror,
    way: Literal["backup", "load"],
    host: list[int],
    device: list[int],
    *,
    single: bool,
) -> tuple[Snapshot, Snapshot]:
    """Both ends after the copy."""
    ends = snapshot(mirror.host), snapshot(mirror.device)
    target, source = ends if way == "backup" else ends[::-1]
    into, out_of = (host, device) if way == "backup" else (device, host)
    geometry = mirror.device.geometry
    for component in geometry.components:
        name = component.name
        if not single:
            target[name][:, into] = source[name][:, out_of]
            continue
        for here, there in zip(into, out_of, strict=True):
            places = zip(
                slot_places(component, geometry, here),
                slot_places(component, geometry, there),
                strict=True,
            )
            for at, origin in places:
                target[name][:, *at] = source[name][:, *origin]
    return ends


def at_a_line(size: int) -> npt.NDArray[np.uint8]:
    """Memory that begins where a line of 128 bytes does, as a device's does."""
    memory = np.zeros(size + 128, dtype=np.uint8)
    start = -memory.ctypes.data % 128
    return memory[start : start + size]


KERNEL = [item for item in COMBINATIONS if item[2] == "kernel"]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("combination", KERNEL, ids=name_of)
@settings(max_examples=4, deadline=None)
@given(
    ids=st.tuples(st.permutations(range(5)), st.permutations(range(6))),
    count=st.integers(1, 5),
    way=st.sampled_from(["backup", "load"]),
    cut=st.integers(0, 3),
)
def test_pages_move_whole_and_nothing_beside_them(
    combination: Combination,
    ids: tuple[list[int], list[int]],
    count: int,
    way: Literal["backup", "load"],
    cut: int,
) -> None:
    """Each layout's pages arrive byte for byte, whatever words and tiles their strides allow."""
    mirror, memories = mirror_of(*combination[:2], layers=3, host_pages=5, device_pages=6, seed=1)
    host, device = (list(one[:count]) for one in ids)
    ends = expected(mirror, way, host, device, single=False)
    geometry = mirror.device.geometry
    at_host, at_device = (Indices.pages(one, geometry) for one in (host, device))
    move = move_between(mirror, at_host, at_device, combination)
    carry_out(move, to_host=way == "backup", cut=cut)
    assert_equal(mirror, *ends)
    assert canaries_live(memories)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "combination", [item for item in KERNEL if not item[0].endswith("state")], ids=name_of
)
@settings(max_examples=3, deadline=None)
@given(data=st.data(), way=st.sampled_from(["backup", "load"]))
def test_slots_move_alone(
    combination: Combination, data: st.DataObject, way: Literal["backup", "load"]
) -> None:
    """Single slots move all of their runs and no byte of their neighbours."""
    mirror, memories = mirror_of(*combination[:2], layers=2, host_pages=3, device_pages=4, seed=2)
    slots = mirror.device.geometry.slots_per_page
    host = data.draw(st.permutations(range(3 * slots)))[:4]
    device = data.draw(st.permutations(range(4 * slots)))[: len(host)]
    host = host[: len(device)]
    ends = expected(mirror, way, host, device, single=True)
    move = move_between(mirror, Indices.slots(host), Indices.slots(device), combination)
    carry_out(move, to_host=way == "backup", cut=1)
    assert_equal(mirror, *ends)
    assert canaries_live(memories)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "combination",
    [item for item in COMBINATIONS if item[1] != "layer_first"],
    ids=name_of,
)
@settings(max_examples=6, deadline=None)
@given(
    ids=st.tuples(st.permutations(range(7)), st.permutations(range(8))),
    count=st.integers(1, 7),
    pages=st.integers(1, 3),
    chunk=st.sampled_from([96, 1000, 1 << 30]),
)
def test_pages_gathered_in_slots_arrive_whole(
    combination: Combination,
    ids: tuple[list[int], list[int]],
    count: int,
    pages: int,
    chunk: int,
) -> None:
    """Gathered slot by slot and sent page by page, rows arrive as they do one by one.

    A run sent crosses no border between registered chunks of host memory.
    """
    mirror, memories = mirror_of(*combination[:2], layers=3, host_pages=7, device_pages=8, seed=3)
    host, device = (list(one[:count]) for one in ids)
    ends = expected(mirror, "backup", host, device, single=False)
    geometry = mirror.device.geometry
    at_host, at_device = (Indices.pages(one, geometry) for one in (host, device))
    move = move_between(mirror, at_host, at_device, combination)
    for piece in move.pieces:
        size = pages * piece.host.page
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cuda_gather, "SLOT_BYTES", size)
            patch.setattr(cuda_gather, "LONG_PAGE_BYTES", 1)
            patch.setattr(cuda_gather, "LEAST_BYTES", 1)
            patch.setattr(cuda_runs, "CHUNK_BYTES", chunk)
            assert cuda_gather.is_gathered(move, piece, (0, 1, 2))
            assert not cuda_gather.is_gathered(move, piece, (0, 1))
            slots = at_a_line(cuda_gather.SLOTS * size + 128)
            slots[-128:] = 0xA5
            places = cuda_gather.in_slots(move, piece)
            kernel = PieceKernel(places, piece, NO_STREAM, to_host=True)
            base = piece.host.buffer.tensors[0].data_ptr()
            for step in cuda_gather.steps(move, piece, slots.ctypes.data):
                kernel.launch(range(3), step.ids, shift=step.shift)
                for target, source, length in zip(*step.runs, strict=True):
                    assert (target - base) // chunk == (target - base + length - 1) // chunk
                    ctypes.memmove(int(target), int(source), int(length))
            assert (slots[-128:] == 0xA5).all()
    assert_equal(mirror, *ends)
    assert canaries_live(memories)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("combination", KERNEL, ids=name_of)
@settings(max_examples=4, deadline=None)
@given(
    ids=st.tuples(st.permutations(range(5)), st.permutations(range(6))),
    count=st.integers(1, 5),
    way=st.sampled_from(["backup", "load"]),
    share=st.integers(0, 100),
)
def test_what_an_engine_takes_the_kernel_leaves(
    combination: Combination,
    ids: tuple[list[int], list[int]],
    count: int,
    way: Literal["backup", "load"],
    share: int,
) -> None:
    """Both together move each byte of the pages once, whatever the engine's share is."""
    mirror, memories = mirror_of(*combination[:2], layers=3, host_pages=5, device_pages=6, seed=4)
    host, device = (list(one[:count]) for one in ids)
    ends = expected(mirror, way, host, device, single=False)
    geometry = mirror.device.geometry
    at_host, at_device = (Indices.pages(one, geometry) for one in (host, device))
    move = move_between(mirror, at_host, at_device, combination)
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
        for piece in move.pieces:
            split = SplitPiece(move, piece, [NO_STREAM], to_host=way == "backup")
            split.launch((0, 1))
            split.launch((2,))
    assert sent == count * share // 100 * 3 * geometry.page_bytes()
    assert_equal(mirror, *ends)
    assert canaries_live(memories)


@pytest.mark.usefixtures("here")
def test_more_slots_than_ids_can_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids go to the device in 32 bits: a pool they cannot address is not copied wrongly."""
    mirror, _ = mirror_of("c4", KERNEL[0][1], layers=1, host_pages=5, device_pages=6, seed=1)
    geometry = mirror.device.geometry
    pages = Indices.pages([0], geometry)
    move = move_between(mirror, pages, pages, KERNEL[0])
    monkeypatch.setattr(cuda_kernel, "_INT32_MAX", 6 * geometry.slots_per_page - 1)
    with pytest.raises(ValueError, match="kv: 18 slots, at most 17 can be named"):
        PieceKernel(move, move.pieces[0], NO_STREAM, to_host=True)
