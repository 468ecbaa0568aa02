"""The copy kernel itself, its source built for this machine's processor, on pools of every kind."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
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

from hicache_dbg.pools import cuda_backup, cuda_kernel, cuda_runs
from hicache_dbg.pools.cuda_kernel import PieceKernel
from hicache_dbg.pools.host import Mirror
from hicache_dbg.pools.indices import Indices
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

    def ids(move: Move, device: torch.device) -> torch.Tensor:
        assert device.type == "cpu"
        return torch.from_numpy(np.concatenate([move.host, move.device]).astype(np.int32))

    monkeypatch.setattr(cuda_kernel, "kernel_of", build)
    monkeypatch.setattr(cuda_kernel, "_architecture", lambda _: "here")
    monkeypatch.setattr(cuda_kernel, "_on_device", ids)
    monkeypatch.setattr(cuda_kernel, "THREADS", 64)


def carry_out(move: Move, *, to_host: bool, cut: int) -> None:
    """All layers of a move, its ids in two launches."""
    for piece in move.pieces:
        kernel = PieceKernel(move, piece, torch.device("cpu"), to_host=to_host)
        layers = range(piece.device.buffer.layers)
        for ids in (slice(cut), slice(cut, None)):
            kernel.launch(layers, _NoStream(), ids)  # type: ignore[arg-type]


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
    [item for item in KERNEL if item[0].startswith(("mla", "mha")) and item[1] != "layer_first"],
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
            patch.setattr(cuda_backup, "SLOT_BYTES", size)
            patch.setattr(cuda_backup, "SHORT_CHUNK_BYTES", 1 << 30)
            patch.setattr(cuda_backup, "LONG_PAGE_BYTES", 1)
            patch.setattr(cuda_backup, "_LINE_BYTES", 1)
            patch.setattr(cuda_runs, "CHUNK_BYTES", chunk)
            assert cuda_backup.is_gathered(piece, (0, 1, 2))
            assert not cuda_backup.is_gathered(piece, (0, 1))
            slots = np.zeros(cuda_backup.SLOTS * size + 128, dtype=np.uint8)
            slots[-128:] = 0xA5
            places = cuda_backup.in_slots(move, piece)
            kernel = PieceKernel(places, piece, torch.device("cpu"), to_host=True)
            base = piece.host.buffer.tensors[0].data_ptr()
            for step in cuda_backup.steps(move, piece, slots.ctypes.data):
                kernel.launch(range(3), _NoStream(), step.ids, step.shift)  # type: ignore[arg-type]
                for target, source, length in zip(*step.runs, strict=True):
                    assert (target - base) // chunk == (target - base + length - 1) // chunk
                    ctypes.memmove(int(target), int(source), int(length))
            assert (slots[-128:] == 0xA5).all()
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
        PieceKernel(move, move.pieces[0], torch.device("cpu"), to_host=True)
