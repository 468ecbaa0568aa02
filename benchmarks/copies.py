"""Copies between device and pinned host pools: byte-exact, and how near to the bus they come.

    python benchmarks/copies.py                  # needs a CUDA device
    python benchmarks/copies.py --device cpu     # the CPU twins

First every pool kind, layout and io backend goes round, whole pages and single slots, and each
byte of both ends is compared. Then 1 GiB of pages, scattered at both ends, is backed up and
loaded; the figures stand beside a plain pinned copy of as many bytes in the same run, as ratios.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch

from hicache_dbg.pools.deepseek_v4 import (
    deepseek_v4_c4,
    deepseek_v4_c4_indexer,
    deepseek_v4_c4_state,
    deepseek_v4_c128,
    deepseek_v4_swa,
)
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import IoBackend, Layout, PoolGeometry
from hicache_dbg.pools.host import HostPool, Mirror, host_geometry_like, host_pool_for
from hicache_dbg.pools.indices import Ids, Indices
from hicache_dbg.pools.kinds import index_k, mha, mla
from hicache_dbg.pools.transfer import CopyOp, PoolCopy, TransferEngine
from hicache_dbg.pools.validate import LAYOUTS_OF

Way = Literal["backup", "load"]
ENGINE = TransferEngine()

KINDS: dict[str, Callable[[], PoolGeometry]] = {
    "mla bf16": lambda: mla(3, 16),
    "mla fp8": lambda: mla(3, 16, torch.uint8),
    "index_k bf16": lambda: index_k(3, 64, "bf16"),
    "index_k fp8": lambda: index_k(3, 64, "fp8"),
    "mha": lambda: mha(3, 16, heads=4, head_dim=128, v_head_dim=64),
    "mha one head": lambda: mha(3, 16, heads=1, head_dim=64),
    "swa": lambda: deepseek_v4_swa(2),
    "c4": lambda: deepseek_v4_c4(3),
    "c128": lambda: deepseek_v4_c128(3),
    "c4 indexer fp8": lambda: deepseek_v4_c4_indexer(3),
    "c4 indexer bf16": lambda: deepseek_v4_c4_indexer(3, dtype="bf16"),
    "c4 state": lambda: deepseek_v4_c4_state(2),
}


@dataclass(frozen=True)
class Case:
    """One line of the table: a geometry of 1 GiB, and how it is copied."""

    name: str
    geometry: PoolGeometry
    layout: Layout
    backend: IoBackend


def cases() -> Iterator[Case]:
    """The three page sizes asked for, and rows, in every layout and io backend there is."""
    for name, geometry in (
        ("index_k bf16   16,384 B", index_k(16, 64, "bf16")),
        ("c4             37,440 B", deepseek_v4_c4(21)),
        ("c128            1,728 B", deepseek_v4_c128(20)),
        ("mla rows     64x1,152 B", mla(16, 64)),
    ):
        for backend, layouts in LAYOUTS_OF.items():
            for layout in layouts:
                if layout is not Layout.PAGE_HEAD:
                    yield Case(name, geometry, layout, backend)


# -- correctness ------------------------------------------------------------------------------


def canonical(pool: DevicePool | HostPool, name: str) -> torch.Tensor:
    """A component's bytes as ``[layer, page, (slot, head,) byte]``, by axis names, on the host."""
    buffer = pool.buffers[name]
    whole = "layer" in buffer.dims
    stacked = buffer.tensors[0] if whole else torch.stack(buffer.tensors)
    dims = buffer.dims if whole else ("layer", *buffer.dims)
    order = [dims.index(dim) for dim in ("layer", "page", "slot", "head", "byte") if dim in dims]
    return stacked.permute(order).contiguous().view(torch.uint8).cpu().clone()


def fill(pool: DevicePool | HostPool, seed: int) -> None:
    """Random bytes everywhere."""
    generator = np.random.default_rng(seed)
    for buffer in pool.buffers.values():
        for number in range(len(buffer.tensors)):
            flat = buffer.flat(number)
            flat.copy_(torch.from_numpy(generator.integers(0, 256, flat.numel(), dtype=np.uint8)))


def op_of(
    mirror: Mirror, way: Way, host: Ids, device: Ids, backend: IoBackend, *, single: bool = False
) -> CopyOp:
    """One operation on one mirror."""
    geometry = mirror.device.geometry
    at_host, at_device = (
        Indices.slots(ids) if single else Indices.pages(ids, geometry) for ids in (host, device)
    )
    layers = tuple(range(geometry.layers))
    copy = PoolCopy(mirror, at_host, at_device, single, backend, layers)
    return CopyOp(1, way, (copy,), np.zeros(host.size, dtype=np.uint32))


def carry_out(op: CopyOp) -> None:
    if op.kind == "backup":
        ENGINE.backup(op)
    else:
        ENGINE.load(op, lambda _: None)


def round_trip(kind: str, layout: Layout, backend: IoBackend, device: str) -> None:
    """Back pages up, load them elsewhere, do the same with slots; compare both ends wholly."""
    rng = np.random.default_rng(len(kind))
    pool = DevicePool(KINDS[kind](), 11, device)
    with host_pool_for(host_geometry_like(pool), 13, layout, pin=device != "cpu") as host_pool:
        mirror = Mirror(pool, host_pool)
        fill(pool, 1)
        fill(host_pool, 2)
        host, on_device = rng.permutation(13)[:7], rng.permutation(11)[:7]
        turns: list[tuple[Way, Ids, Ids, bool]] = [
            ("backup", host, on_device, False),
            ("load", host, on_device[::-1].copy(), False),
        ]
        if pool.geometry.single_slots:
            slots = pool.geometry.slots_per_page
            some = rng.permutation(13 * slots)[:9], rng.permutation(11 * slots)[:9]
            turns.append(("backup", some[0], some[1], True))
            turns.append(("load", some[0], some[1][::-1].copy(), True))
        for way, at_host, at_device, single in turns:
            expected = {c: [canonical(host_pool, c), canonical(pool, c)] for c in pool.buffers}
            for component, ends in expected.items():
                places = [
                    _places(pool.geometry, component, ids, single=single)
                    for ids in (at_host, at_device)
                ]
                for here, there in zip(*places, strict=True):
                    if way == "backup":
                        ends[0][(slice(None), *here)] = ends[1][(slice(None), *there)]
                    else:
                        ends[1][(slice(None), *there)] = ends[0][(slice(None), *here)]
            if device != "cpu":
                torch.cuda.synchronize()
            carry_out(op_of(mirror, way, at_host, at_device, backend, single=single))
            for component, ends in expected.items():
                what = f"{kind} {layout} {backend} {way} single={single}: {component}"
                assert torch.equal(canonical(host_pool, component), ends[0]), f"{what} on the host"
                assert torch.equal(canonical(pool, component), ends[1]), f"{what} on the device"


def _places(
    geometry: PoolGeometry, component: str, ids: Ids, *, single: bool
) -> list[tuple[int | slice, ...]]:
    """Where ids lie in canonical form."""
    if not single:
        return [(int(page),) for page in ids]
    places: list[tuple[int | slice, ...]] = []
    for page, slot in zip(*np.divmod(ids, geometry.slots_per_page), strict=True):
        if not geometry.page_indexed:
            places.append((int(page), int(slot)))
            continue
        spec = geometry.component(component)
        for number, run in enumerate(spec.runs):
            begin = spec.run_offset(number, geometry.slots_per_page) + int(slot) * run.slot_bytes
            places.append((int(page), slice(begin, begin + run.slot_bytes)))
    return places


def all_round_trips(device: str) -> int:
    """Every combination that exists; how many there are."""
    count = 0
    for kind in KINDS:
        for backend, layouts in LAYOUTS_OF.items():
            for layout in layouts:
                if layout is not Layout.PAGE_HEAD or kind.startswith("mha"):
                    round_trip(kind, layout, backend, device)
                    count += 1
    return count


# -- speed ------------------------------------------------------------------------------------


def seconds(work: Callable[[], object]) -> float:
    """How long one run takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def medians(
    first: Callable[[], object], second: Callable[[], object], repeats: int
) -> tuple[float, float]:
    """Median seconds of two works that run in turns, so that both see the same machine."""
    first()
    second()
    runs = [(seconds(first), seconds(second)) for _ in range(repeats)]
    one, other = zip(*runs, strict=True)
    return statistics.median(one), statistics.median(other)


def plain_copies(size: int, device: str) -> dict[Way, Callable[[], None]]:
    """A contiguous copy of ``size`` pinned bytes each way, to its end."""
    cuda = device != "cpu"
    host = torch.ones(size, dtype=torch.uint8, pin_memory=cuda)
    other = torch.ones(size, dtype=torch.uint8, device=device)

    def copy(target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)
        if cuda:
            torch.cuda.synchronize()

    return {"backup": lambda: copy(host, other), "load": lambda: copy(other, host)}


def measure(case: Case, size: int, device: str, repeats: int) -> dict[Way, tuple[float, float]]:
    """Median GB/s of ``case`` and its ratio to the plain copy, each way."""
    geometry = case.geometry
    pages = size // (geometry.page_bytes() * geometry.layers)
    moved = pages * geometry.page_bytes() * geometry.layers
    pool = DevicePool(geometry, pages + pages // 4, device)
    rng = np.random.default_rng(3)
    result: dict[Way, tuple[float, float]] = {}
    with host_pool_for(
        host_geometry_like(pool), pages + pages // 4, case.layout, pin=device != "cpu"
    ) as host_pool:
        mirror = Mirror(pool, host_pool)
        for buffer in host_pool.buffers.values():
            buffer.flat(0).fill_(1)
        ids = [rng.permutation(pages + pages // 4)[:pages] for _ in range(2)]
        plain = plain_copies(moved, device)
        ways: Sequence[Way] = ("backup", "load")
        for way in ways:
            op = op_of(mirror, way, ids[0], ids[1], case.backend)
            mine, other = medians(partial(carry_out, op), plain[way], repeats)
            result[way] = moved / mine / 1e9, other / mine
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="copies: byte-exact, and how near to the bus")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--mib", type=int, default=1024, help="bytes moved per operation, in MiB")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    print(f"round trips byte-exact: {all_round_trips(args.device)} combinations on {args.device}")
    size = args.mib << 20
    for way, copy in plain_copies(size, args.device).items():
        copy()
        took = statistics.median(seconds(copy) for _ in range(args.repeats))
        print(f"plain {way}: {size / took / 1e9:.1f} GB/s")
    print(f"{'pages':24} {'layout':18} {'backend':8} backup GB/s  ratio   load GB/s  ratio")
    for case in cases():
        # The copy engines take up to microseconds a page: fewer pages tell as much.
        share = size // 4 if case.backend is IoBackend.DIRECT else size
        found = measure(case, share, args.device, args.repeats)
        (up, up_ratio), (down, down_ratio) = found["backup"], found["load"]
        print(
            f"{case.name:24} {case.layout:18} {case.backend:8} {up:11.1f}  {up_ratio:5.2f}  "
            f"{down:10.1f}  {down_ratio:5.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
