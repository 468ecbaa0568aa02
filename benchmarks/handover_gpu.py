"""Pages from one GPU to another through NIXL: every byte compared, then the rate, and what tracing costs.

    python -m benchmarks.handover_gpu                  # two GPUs of one host; with one, both ends on it
    python -m benchmarks.handover_gpu --device cpu     # the same between two processes' CPU memory

Each pool set is handed over once, from unrelated pages to unrelated pages, and compared with what the
same seed gives again. UCX says which way the bytes take under ``UCX_LOG_LEVEL=info`` (``cuda_ipc``
between two GPUs). One JSON line; exits 1 if a byte is wrong.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np
import torch
from benchmarks.handover import WAIT_S, measure

from hicache_dbg.pools.geometry import Layout, PoolGeometry
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.handover.decode import DecodeEnd
from hicache_dbg.pools.handover.link import Link
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


def prefill(channel: Connection, name: str, device: str) -> None:
    """Hand one request over."""
    link = Link("prefill", filled(name, device), channel, silence_s=WAIT_S)
    link.agree()
    with PrefillEnd(link) as end:
        end.wait(end.send("r", np.array(TAKEN), len(TAKEN) * 64), WAIT_S)


def wrong_tiles(name: str, devices: tuple[str, str]) -> tuple[int, int]:
    """Tiles that are not what prefill had, and tiles in all."""
    context = get_context("spawn")
    ours, channel = context.Pipe()
    process = context.Process(target=prefill, args=(channel, name, devices[0]), daemon=True)
    process.start()
    channel.close()
    group, wanted = filled(name, devices[1]), filled(name, "cpu")
    for mirror in group.mirrors:
        for buffer in mirror.device.buffers.values():
            for tensor in buffer.tensors:
                tensor.zero_()
    link = Link("decode", group, ours, silence_s=WAIT_S)
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


def main() -> None:
    parser = argparse.ArgumentParser(description="Prefill to decode from GPU to GPU.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--pages", type=int, default=64)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--consecutive", action="store_true", help="decode's pages in a row")
    asked = parser.parse_args()
    devices = ("cpu", "cpu")
    if asked.device == "cuda":
        devices = ("cuda:0", "cuda:1" if torch.cuda.device_count() > 1 else "cuda:0")
    tiles = {name: wrong_tiles(name, devices) for name in SETS}
    rate = measure(asked.pairs, asked.pages, asked.requests, devices, consecutive=asked.consecutive)
    print(json.dumps({"devices": devices, "wrong_and_all_tiles": tiles, **rate}))
    sys.exit(any(wrong for wrong, _ in tiles.values()))


if __name__ == "__main__":
    main()
