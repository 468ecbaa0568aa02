"""Pages from one GPU to another through NIXL: every byte compared, then the rate, and what tracing costs.

    python -m benchmarks.handover_gpu                  # two GPUs of one host; with one, both ends on it
    python -m benchmarks.handover_gpu --table          # the table of docs/handover.md, as Markdown
    python -m benchmarks.handover_gpu --nixl-thread    # with NIXL's progress thread at both ends
    python -m benchmarks.handover_gpu --device cpu     # the same between two processes' CPU memory

Each pool set is handed over once, from unrelated pages to unrelated pages, and compared with what the
same seed gives again. UCX says which way the bytes take under ``UCX_LOG_LEVEL=info`` (``cuda_ipc``
between two GPUs). One JSON line, or the table behind it; exits 1 if a byte is wrong.

The table measures each shape twice, with processes of their own: without NIXL's thread, as the engine
runs within a host (``GB/s`` and the two columns of tiles recorded), and with it. Pages in a row are also
handed over tile by tile, without merging adjacent rows.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np
import torch
from benchmarks.handover import WAIT_S, Way, link_of, measure

from hicache_dbg.pools.geometry import Layout, PoolGeometry
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.handover.decode import DecodeEnd
from hicache_dbg.pools.handover.prefill import PrefillEnd
from hicache_dbg.pools.kinds import index_k, mha, mla
from hicache_dbg.repro.v4.model import DEEPSEEK_V4

PAGES = 12
#: Unrelated pages, and three in a row at both ends, which go over as one.
TAKEN = (7, 2, 11, 4, 5, 6)
INTO = (3, 8, 0, 9, 10, 11)
SETS: Mapping[str, Callable[[], tuple[PoolGeometry, ...]]] = {
    "mla_index_k": lambda: (mla(4, 64), index_k(4, 64, "fp8")),
    "mha": lambda: (mha(4, 64, heads=8, head_dim=128),),
    "deepseek_v4": lambda: DEEPSEEK_V4.geometries("bf16"),
}
#: Rows of the table: requests, pages of each, whether decode's pages are in a row.
ROWS = (
    (6, 8, False),
    (1, 64, False),
    (4, 32, False),
    (8, 1, False),
    (1, 1, False),
    (6, 8, True),
    (4, 32, True),
)


def filled(name: str, device: str) -> PoolGroup:
    """Pools whose every byte follows from the set's name."""
    group = PoolGroup.build(
        SETS[name](), device_pages=PAGES, host_pages=1, layout=Layout.LAYER_FIRST, device=device
    )
    generator = np.random.default_rng(len(name))
    for mirror in group.mirrors:
        for buffer in mirror.device.buffers.values():
            for tensor in buffer.tensors:
                flat = tensor.view(torch.uint8).view(-1)
                flat.copy_(torch.from_numpy(generator.integers(0, 256, flat.numel(), np.uint8)))
    if device != "cpu":
        torch.cuda.synchronize(device)
    return group


def prefill(channel: Connection, name: str, way: Way) -> None:
    """Hand one request over."""
    link = link_of("prefill", filled(name, way.devices[0]), channel, way, WAIT_S)
    link.agree()
    with PrefillEnd(link) as end:
        end.wait(end.send("r", np.array(TAKEN), len(TAKEN) * 64), WAIT_S)


def wrong_tiles(name: str, way: Way) -> tuple[int, int]:
    """Tiles that are not what prefill had, and tiles in all."""
    context = get_context("spawn")
    ours, channel = context.Pipe()
    process = context.Process(target=prefill, args=(channel, name, way), daemon=True)
    process.start()
    channel.close()
    group, wanted = filled(name, way.devices[1]), filled(name, "cpu")
    for mirror in group.mirrors:
        for buffer in mirror.device.buffers.values():
            for tensor in buffer.tensors:
                tensor.zero_()
    link = link_of("decode", group, ours, way, WAIT_S)
    link.agree()
    with DecodeEnd(link, lambda _pages: None) as end:
        end.wait(end.expect("r", np.array(INTO), len(INTO) * 64), WAIT_S)
    process.join(WAIT_S)
    wrong = total = 0
    for mirror, twin in zip(group.mirrors, wanted.mirrors, strict=True):
        for key, buffer in mirror.device.buffers.items():
            for tensor, other in zip(buffer.tensors, twin.device.buffers[key].tensors, strict=True):
                for into, taken in zip(INTO, TAKEN, strict=True):
                    total += 1
                    here = tensor[into].cpu().view(torch.uint8)
                    wrong += not torch.equal(here, other[taken].view(torch.uint8))
    return wrong, total


def table(way: Way, pairs: int) -> Iterator[str]:
    """Yield the lines of the table; each takes as long as its measurement."""
    yield (
        "| requests x pages | decode's pages | GB/s | GB/s with NIXL's thread | ms with tiles recorded "
        "| with / without |"
    )
    yield "|---|---|---:|---:|---:|---:|"
    for requests, pages, consecutive in ROWS:
        for by_tile in (False, True) if consecutive else (False,):
            plain, threaded = (
                measure(
                    pairs,
                    pages,
                    requests,
                    replace(way, thread=thread, by_tile=by_tile),
                    consecutive=consecutive,
                )
                for thread in (False, True)
            )
            order = "in a row" if consecutive else "unrelated"
            yield (
                f"| {requests} x {pages} | {order}{', tile by tile' if by_tile else ''} "
                f"| {plain['gb_s']:.1f} | {threaded['gb_s']:.1f} | {plain['recorded_ms']:.1f} "
                f"| {plain['ratio']:.2f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Prefill to decode from GPU to GPU.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--one-gpu", action="store_true", help="both ends on the first GPU")
    parser.add_argument("--table", action="store_true", help="the whole table of docs/handover.md")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--pages", type=int, default=64)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--consecutive", action="store_true", help="decode's pages in a row")
    parser.add_argument(
        "--nixl-thread",
        action="store_true",
        help="run NIXL's progress thread at both ends; --table measures with and without",
    )
    asked = parser.parse_args()
    devices = ("cpu", "cpu")
    if asked.device == "cuda":
        two = torch.cuda.device_count() > 1 and not asked.one_gpu
        devices = ("cuda:0", "cuda:1" if two else "cuda:0")
    way = Way(devices, thread=True if asked.nixl_thread else None)
    tiles = {name: wrong_tiles(name, way) for name in SETS}
    found: dict[str, object] = {"devices": devices, "wrong_and_all_tiles": tiles}
    if not asked.table:
        found |= measure(
            asked.pairs, asked.pages, asked.requests, way, consecutive=asked.consecutive
        )
    print(json.dumps(found))
    if asked.table:
        for line in table(way, asked.pairs):
            print(line, flush=True)
    sys.exit(any(wrong for wrong, _ in tiles.values()))


if __name__ == "__main__":
    main()
