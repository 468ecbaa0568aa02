"""Measure copies between device and pinned host pools against the bus, and against SGLang's.

    python -m benchmarks.copies                  # needs a CUDA device
    python -m benchmarks.copies --device cpu     # the same copies on the CPU

1 GiB of pages, scattered at both ends, is backed up and loaded. In turns with it run a plain pinned
copy of as many bytes and, if SGLang can be imported, its own host pool's copy of the same pages. A
ratio is the median over the turns. Ours is timed from an operation's ids to its last byte; SGLang's
ids are prepared before the clock starts. The bytes of both are checked first.
``benchmarks.roundtrip_gpu`` checks every combination.
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
from benchmarks.copy_rig import Direction, Step, execute, fill, operation
from benchmarks.sglang_pools import Peer, peer_pool, sglang_version

from hicache_dbg.pools.deepseek_v4 import deepseek_v4_c4, deepseek_v4_c128
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import IoBackend, Layout, PoolGeometry
from hicache_dbg.pools.host import Mirror, host_geometry_like, host_pool_for
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.kinds import index_k, mha, mla
from hicache_dbg.pools.validate import LAYOUTS_OF

DIRECTIONS: tuple[Direction, Direction] = ("backup", "load")
Work = Callable[[], object]

#: Name, geometry, and the share of ``--mib`` that each io backend moves: the copy engines take
#: microseconds per page, so fewer pages are enough.
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
    """One line of the table: a pool in one layout, copied by one io backend; ``size`` is in bytes."""

    name: str
    geometry: PoolGeometry
    layout: Layout
    backend: IoBackend
    size: int


@dataclass(frozen=True)
class Figures:
    """Median seconds of our copy and of SGLang's, and the plain copy's time over each; 0: no peer."""

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


def plain_copies(size: int, device: str) -> dict[Direction, Work]:
    """Return synchronous contiguous copies of ``size`` pinned bytes, one for each direction."""
    cuda = device != "cpu"
    host = torch.ones(size, dtype=torch.uint8, pin_memory=cuda)
    on_device = torch.ones(size, dtype=torch.uint8, device=device)

    def copy(target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)
        if cuda:
            torch.cuda.synchronize()

    return {"backup": lambda: copy(host, on_device), "load": lambda: copy(on_device, host)}


def bytes_return(mirror: Mirror, host: Ids, device: Ids, backend: IoBackend) -> bool:
    """Return whether pages backed up and loaded over zeros are restored, and others still zero."""
    tensors = [tensor for buffer in mirror.device.buffers.values() for tensor in buffer.tensors]
    expected = [tensor.clone() for tensor in tensors]
    execute(operation(mirror, Step("backup", host, device), backend))
    for tensor, right in zip(tensors, expected, strict=True):
        tensor.zero_()
        untouched = torch.ones(right.shape[0], dtype=torch.bool, device=right.device)
        untouched[torch.from_numpy(device).to(right.device)] = False
        right[untouched] = 0
    if tensors[0].is_cuda:
        torch.cuda.synchronize()
    execute(operation(mirror, Step("load", host, device), backend))
    return all(
        torch.equal(tensor.view(torch.uint8), right.view(torch.uint8))
        for tensor, right in zip(tensors, expected, strict=True)
    )


def in_turns(works: list[Work], repeats: int) -> list[list[float]]:
    """Return the seconds of each work in each turn, after a turn to warm up."""

    def seconds(work: Work) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    for work in works:
        work()
    turns = [[seconds(work) for work in works] for _ in range(repeats)]
    return [list(column) for column in zip(*turns, strict=True)]


def figures(plain: list[float], ours: list[float], peer: list[float] | None = None) -> Figures:
    """Return the medians; a ratio is the median over pairs of the same turn."""

    def ratio(copies: list[float]) -> float:
        return statistics.median(a / b for a, b in zip(plain, copies, strict=True))

    if peer is None:
        return Figures(statistics.median(ours), ratio(ours))
    return Figures(statistics.median(ours), ratio(ours), statistics.median(peer), ratio(peer))


def measure(case: Case, device: str, repeats: int, *, beside_peer: bool) -> str:
    """Measure a case, and return its line of the table."""
    geometry = case.geometry
    pages = max(1, case.size // (geometry.page_bytes() * geometry.layers))
    room = pages + pages // 4
    moved = pages * geometry.page_bytes() * geometry.layers
    rng = np.random.default_rng(3)
    host, on_device = (rng.permutation(room)[:pages] for _ in range(2))
    results: dict[Direction, Figures] = {}
    with ExitStack() as stack:
        pool = DevicePool(geometry, room, device)
        fill(pool, 1, pool.device)
        host_pool = host_pool_for(host_geometry_like(pool), room, case.layout, pin=device != "cpu")
        mirror = Mirror(pool, stack.enter_context(host_pool))
        if not bytes_return(mirror, host, on_device, case.backend):
            raise SystemExit(f"{case.name} {case.layout} {case.backend}: bytes are wrong")
        peer = _peer(case, room, host, on_device) if beside_peer else None
        if peer is not None:
            stack.callback(peer.close)
        plain = plain_copies(moved, device)
        for direction in DIRECTIONS:
            op = operation(mirror, Step(direction, host, on_device), case.backend)
            works: list[Work] = [plain[direction], partial(execute, op)]
            if peer is not None:
                works.append(getattr(peer, direction))
            results[direction] = figures(*in_turns(works, repeats))
    cells = " | ".join(_cells(results[direction], moved) for direction in DIRECTIONS)
    return f"| {case.name} | {case.layout}, {case.backend} | {cells} |"


def _peer(case: Case, room: int, host: Ids, on_device: Ids) -> Peer | None:
    """Return SGLang's pool for the case, after a check of its bytes; None if it has no such pool."""
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


def _cells(result: Figures, moved: int) -> str:
    ours = f"{moved / result.seconds / 1e9:.1f} ({result.ratio:.3f})"
    if not result.peer_seconds:
        return f"{ours} | -"
    return f"{ours} | {moved / result.peer_seconds / 1e9:.1f} ({result.peer_ratio:.3f})"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description="Measure copies against the bus and SGLang's.")
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
            else "SGLang cannot be imported here (or there is no GPU): ours is measured alone"
        )
    )
    for direction, copy in plain_copies(size, options.device).items():
        took = statistics.median(in_turns([copy], options.repeats)[0])
        print(f"plain {direction}: {size / took / 1e9:.1f} GB/s")
    print("\n| pages | layout, backend | backup GB/s (of plain) | SGLang's | load | SGLang's |")
    print("|---|---|---:|---:|---:|---:|")
    for case in cases(size, options.backends):
        if case.name.startswith(tuple(options.pools)):
            row = measure(case, options.device, options.repeats, beside_peer=version is not None)
            print(row, flush=True)


if __name__ == "__main__":
    main()
