"""Measure the CPU digester against the bare xxhash package."""

import statistics
from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from hicache_dbg.tracer.bench.memory import CONTIGUOUS, GIB, one_piece, random_bytes, view_of
from hicache_dbg.tracer.bench.table import Row, median, seconds
from hicache_dbg.tracer.digest import CpuDigester
from hicache_dbg.tracer.view import Run, View

__all__ = ["cpu_rows"]


def cpu_rows(repeats: int = 9) -> Iterator[Row]:
    """Digest 256 MB of tiles; the package gets prebuilt buffers in the same order."""
    memory, digester = random_bytes((1, GIB // 4), "cpu"), CpuDigester()
    for size in CONTIGUOUS:
        view = one_piece(memory, size)
        order = np.random.default_rng(1).permutation(view.pages)
        yield _against_package(digester, view, order, f"{size} B, in any order", repeats)
        ascending = np.arange(view.pages)
        yield _against_package(digester, view, ascending, f"{size} B, as they lie", repeats)
    rows = view_of(memory, (Run(0, 4096, 512),), 64 * 4096, GIB // 4 // (64 * 4096), slots=64)
    order = np.random.default_rng(1).permutation(rows.pages)
    took = statistics.median(
        seconds(lambda: digester.digest(rows, [0], order)) for _ in range(repeats)
    )
    speed = rows.pages * rows.tile_bytes() / took / 1e9
    yield Row("cpu rows", "64 rows of 512 B, 1 layer of 8", None, f"{speed:.1f} GB/s")


def _against_package(
    digester: CpuDigester, view: View, order: npt.NDArray[np.int64], case: str, repeats: int
) -> Row:
    assert isinstance(view.owner, torch.Tensor)
    whole, size = view.owner[0].numpy().data, view.tile_bytes()
    tiles = [whole[page * size : (page + 1) * size] for page in order.tolist()]
    ratios, times = [], []
    for _ in range(repeats):
        bare = seconds(partial(package_digests, tiles))
        ours = seconds(partial(digester.digest, view, [0], order))
        ratios.append(bare / ours)
        times.append(ours)
    speed = view.pages * size / statistics.median(times) / 1e9
    goal = ">= 0.9" if size >= 8192 else ""
    return Row("cpu over xxhash", case, median(ratios), f"{speed:.1f} GB/s", goal)


def package_digests(tiles: list[memoryview]) -> list[int]:
    return [xxhash.xxh3_64_intdigest(tile) for tile in tiles]
