"""Copies between device and pinned host pools: how near to the bus they come, beside SGLang's.

    python -m benchmarks.copies                  # needs a CUDA device
    python -m benchmarks.copies --device cpu     # the CPU twins

1 GiB of pages, scattered at both ends, is backed up and loaded; in turns with it run a plain
pinned copy of as many bytes and, where SGLang can be imported, its own host pool's copy of the
same pages. A ratio is the median over the turns. Ours is timed whole, from an operation's ids to
its last byte; of SGLang's the ids are prepared before the clock starts. Before that the bytes of
both are checked on the device. ``benchmarks.roundtrip_gpu`` checks every combination.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from benchmarks.copy_rig import Way, carry_out, fill, operation
from benchmarks.sglang_pools import Peer, peer_pool, sglang_version

from hicache_dbg.pools.deepseek_v4 import deepseek_v4_c4, deepseek_v4_c128
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import IoBackend, Layout, PoolGeometry
from hicache_dbg.pools.host import Mirror, host_geometry_like, host_pool_for
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.kinds import index_k, mha, mla
from hicache_dbg.pools.validate import LAYOUTS_OF

WAYS: tuple[Way, Way] = ("backup", "load")
Work = Callable[[], object]

#: Name, geometry, and the share of ``--mib`` that moves with each io backend: the copy engines
#: take microseconds a page, and fewer pages tell as much.
POOLS: dict[str, tuple[Callable[[], PoolGeometry], dict[str, float]]] = {
    "index-K bf16  16,384 B": (lambda: index_k(16, 64, "bf16"), {"kernel": 1, "direct": 0.25}),
    "index-K fp8    8,448 B": (lambda: index_k(16, 64, "fp8"), {"kernel": 1, "direct": 0.125}),
    "C4            37,440 B": (lambda: deepseek_v4_c4(21), {"kernel": 1, "direct": 0.25}),
    "C128           1,728 B": (lambda: deepseek_v4_c128(20), {"kernel": 1, "direct": 0.03}),
    "MLA rows  64 x 1,152 B": (lambda: mla(16, 64), {"kernel": 1, "direct": 0.25}),
    "MHA rows  64 x 4,096 B": (lambda: mha(16, 64, 8, 128), {"kernel": 1, "direct": 0.25}),
}


@dataclass(frozen=True)
class Case:
    """Some lines of the table: a pool in one layout, and how much of it moves how."""

    name: str
    geometry: PoolGeometry
    layout: Layout
    backend: IoBackend
    size: int


@dataclass(frozen=True)
class Figures:
    """Median seconds of ours and of SGLang's, and what a plain copy takes of ours and of it."""

    seconds: float
    ratio: float
    peer_seconds: float = 0
    peer_ratio: float = 0


def cases(size: int, backends: list[str]) -> Iterator[Case]:
    """Yield every pool in every layout that most pools have."""
    for name, (geometry, shares) in POOLS.items():
        for backend in map(IoBackend, backends):
            for layout in LAYOUTS_OF[backend]:
                if layout is not Layout.PAGE_HEAD:
                    yield Case(name, geometry(), layout, backend, int(size * shares[backend]))


def plain_copies(size: int, device: str) -> dict[Way, Work]:
    """Return synchronous contiguous copies of ``size`` pinned bytes, one for each direction."""
    cuda = device != "cpu"
    host = torch.ones(size, dtype=torch.uint8, pin_memory=cuda)
    other = torch.ones(size, dtype=torch.uint8, device=device)

    def copy(target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)
        if cuda:
            torch.cuda.synchronize()

    return {"backup": lambda: copy(host, other), "load": lambda: copy(other, host)}


def bytes_return(mirror: Mirror, ids: tuple[Ids, Ids], backend: IoBackend) -> bool:
    """Return whether pages backed up and loaded over zeros are restored, and others still zero."""
    tensors = [tensor for buffer in mirror.device.buffers.values() for tensor in buffer.tensors]
    before = [tensor.clone() for tensor in tensors]
    carry_out(operation(mirror, "backup", *ids, backend))
    for tensor, one in zip(tensors, before, strict=True):
        tensor.zero_()
        rest = torch.ones(one.shape[0], dtype=torch.bool, device=one.device)
        rest[torch.from_numpy(ids[1]).to(one.device)] = False
        one[rest] = 0
    if tensors[0].is_cuda:
        torch.cuda.synchronize()
    carry_out(operation(mirror, "load", *ids, backend))
    return all(
        torch.equal(tensor.view(torch.uint8), one.view(torch.uint8))
        for tensor, one in zip(tensors, before, strict=True)
    )


def in_turns(works: list[Work], repeats: int) -> list[list[float]]:
    """Seconds of each work, run after run, one after the other."""

    def seconds(work: Work) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    for work in works:
        work()
    turns = [[seconds(work) for work in works] for _ in range(repeats)]
    return [list(column) for column in zip(*turns, strict=True)]


def figures(plain: list[float], mine: list[float], peer: list[float] | None = None) -> Figures:
    """Medians, the ratios over pairs of the same turn."""

    def ratio(of: list[float]) -> float:
        return statistics.median(a / b for a, b in zip(plain, of, strict=True))

    if peer is None:
        return Figures(statistics.median(mine), ratio(mine))
    return Figures(statistics.median(mine), ratio(mine), statistics.median(peer), ratio(peer))


def measure(case: Case, device: str, repeats: int, *, beside_peer: bool) -> str:
    """Measure a case, and return its line of the table."""
    geometry = case.geometry
    pages = max(1, case.size // (geometry.page_bytes() * geometry.layers))
    room = pages + pages // 4
    moved = pages * geometry.page_bytes() * geometry.layers
    rng = np.random.default_rng(3)
    host, on_device = (rng.permutation(room)[:pages] for _ in range(2))
    found: dict[Way, Figures] = {}
    with ExitStack() as stack:
        pool = DevicePool(geometry, room, device)
        fill(pool, 1, pool.device)
        host_pool = host_pool_for(host_geometry_like(pool), room, case.layout, pin=device != "cpu")
        mirror = Mirror(pool, stack.enter_context(host_pool))
        if not bytes_return(mirror, (host, on_device), case.backend):
            raise SystemExit(f"{case.name} {case.layout} {case.backend}: bytes are wrong")
        peer = _peer(case, room, host, on_device) if beside_peer else None
        if peer is not None:
            stack.callback(peer.close)
        plain = plain_copies(moved, device)
        for way in WAYS:
            op = operation(mirror, way, host, on_device, case.backend)
            works: list[Work] = [plain[way], partial(carry_out, op)]
            if peer is not None:
                works.append(getattr(peer, way))
            found[way] = figures(*in_turns(works, repeats))
    return (
        f"| {case.name} | {case.layout}, {case.backend} | "
        + " | ".join(_cells(found[way], moved) for way in WAYS)
        + " |"
    )


def _peer(case: Case, room: int, host: Ids, on_device: Ids) -> Peer | None:
    """SGLang's pool for the case, proven to move the right bytes; None where it has none."""
    where = f"{case.name} {case.layout} {case.backend}"
    try:
        peer = peer_pool(case.geometry, room, case.layout.value, case.backend.value)
        peer.aim(host, on_device)
        right = peer.bytes_return(on_device)
    except (ValueError, RuntimeError) as error:  # a layout it lacks, or a refusal by CUDA
        print(f"{where}: SGLang says {error}", file=sys.stderr)
        return None
    if not right:
        raise SystemExit(f"{where}: SGLang's bytes are wrong")
    return peer


def _cells(of: Figures, moved: int) -> str:
    ours = f"{moved / of.seconds / 1e9:.1f} ({of.ratio:.3f})"
    if not of.peer_seconds:
        return f"{ours} | -"
    return f"{ours} | {moved / of.peer_seconds / 1e9:.1f} ({of.peer_ratio:.3f})"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description="Copies: how near to the bus, beside SGLang's.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--mib", type=int, default=1024, help="bytes moved at most, in MiB")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--backends", nargs="+", default=["kernel", "direct"])
    parser.add_argument("--pools", nargs="+", default=[""], help="only names beginning with these")
    options = parser.parse_args()
    size = options.mib << 20
    version = sglang_version() if options.device != "cpu" else None
    name = "cpu" if options.device == "cpu" else torch.cuda.get_device_name(options.device)
    print(
        f"{name}, torch {torch.__version__}; "
        + (
            f"SGLang {version} beside it"
            if version
            else "NO SGLang can be imported here (or no GPU): nothing stands beside ours"
        )
    )
    for way, copy in plain_copies(size, options.device).items():
        took = statistics.median(in_turns([copy], options.repeats)[0])
        print(f"plain {way}: {size / took / 1e9:.1f} GB/s")
    print("\n| pages | layout, backend | backup GB/s (of plain) | SGLang's | load | SGLang's |")
    print("|---|---|---:|---:|---:|---:|")
    for case in cases(size, options.backends):
        if case.name.startswith(tuple(options.pools)):
            row = measure(case, options.device, options.repeats, beside_peer=version is not None)
            print(row, flush=True)


if __name__ == "__main__":
    main()
