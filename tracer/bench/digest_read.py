"""Measure digest throughput on the device against torch's read of the same bytes."""

import statistics
from collections.abc import Iterator
from functools import partial

import torch

from hicache_dbg.tracer.bench.memory import CONTIGUOUS, GIB, one_piece, random_bytes, view_of
from hicache_dbg.tracer.bench.table import Row, device_ms, median
from hicache_dbg.tracer.digest.select import DeviceDigester
from hicache_dbg.tracer.view import Run, View

__all__ = ["throughput_rows"]


def throughput_rows(digester: DeviceDigester) -> Iterator[Row]:
    """Measure every tile of 4 GiB by random page ids, then other shapes, then other page counts."""
    memory = random_bytes((1, 4 * GIB), "cuda")
    for size in CONTIGUOUS:
        goal = ">= 0.97" if size >= 4096 else ">= 0.85"
        yield from against_read(digester, one_piece(memory, size), f"{size} B", goal=goal)
    shapes = {
        "512 B rows, 64 to a tile": ((Run(0, 1024, 512),), 65536, 64),
        "132 B rows, 64 to a tile": ((Run(0, 264, 132),), 64 * 264, 64),
        "576 B and 8 B runs, gaps between": ((Run(0, 640, 576), Run(40960, 16, 8)), 41984, 64),
    }
    for name, (runs, stride, slots) in shapes.items():
        view = view_of(memory, runs, stride, 4 * GIB // stride, slots=slots)
        yield from against_read(digester, view, name)
    for shift in (8, 4, 1):
        view = one_piece(memory, 8448, shift=shift)
        yield from against_read(digester, view, f"8448 B at an address of {shift} mod 16")
    del memory
    memory = random_bytes((61, GIB // 8), "cuda")
    for count in (16, 64, 256, 1024, 8000):
        view = one_piece(memory, 16384)
        yield from against_read(digester, view, f"16384 B, 61 layers x {count} pages", count=count)
    for layers in (1, 4, 16):
        view = one_piece(memory[:layers], 16384)
        yield from against_read(digester, view, f"16384 B, {layers} layers x 256 pages", count=256)
    del memory
    memory = random_bytes((1, 500_000 * 8448), "cuda")
    for count in (16, 256, 4096, 65536, 500_000):
        view = one_piece(memory, 8448)
        yield from against_read(digester, view, f"8448 B, 1 layer x {count} pages", count=count)


def against_read(
    digester: DeviceDigester, view: View, case: str, *, goal: str = "", count: int = 0
) -> Iterator[Row]:
    """Digest ``count`` random pages (default: all) of each layer, against torch's sum of the bytes.

    Each repetition uses other pages and other memory, so that small counts do not hit the cache.
    """
    memory, layers = view.owner, view.layers
    assert isinstance(memory, torch.Tensor)
    count = min(count or view.pages, view.pages)
    order = torch.randperm(view.pages, device="cuda")
    out = torch.empty(layers, count, dtype=torch.int64, device="cuda")
    words = memory.view(-1).view(torch.int64)
    length = min(layers * count * view.tile_bytes() // 8, len(words))
    ratios, speeds, times = [], [], []
    for repeat in range(10):
        page = repeat * count % max(1, view.pages - count + 1)
        ids = order[page : page + count]
        at = repeat * length % max(1, len(words) - length + 1)
        ours = device_ms(partial(digester.digest, view, range(layers), ids, out=out))
        read = device_ms(words[at : at + length].sum)
        if repeat >= 3:  # the first three are warm-up
            ratios.append(read / ours * layers * count * view.tile_bytes() / (8 * length))
            speeds.append(layers * count * view.tile_bytes() / ours / 1e6)
            times.append(ours)
    took = f"{statistics.median(speeds):.0f} GB/s in {1e3 * statistics.median(times):.0f} us"
    yield Row("device over torch read", case, median(ratios), took, goal)
