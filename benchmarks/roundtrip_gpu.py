"""Every pool in every layout with every io backend goes round, and each byte is compared.

    python -m benchmarks.roundtrip_gpu                    # needs a CUDA device
    python -m benchmarks.roundtrip_gpu --device cpu --mib 1

Whole pages are backed up and loaded to other places, then single slots where a slot may move
alone; after each step both ends are compared wholly, so that bytes beside the target count too.
It is done with a few pages, and with pages of ``--mib`` together, of which copy engines take a
share. One line a combination; exits 1 if one of them is wrong.
"""

import argparse
import sys
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from benchmarks.copy_rig import KINDS, Combination, Way, carry_out, combinations, fill, operation

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import PoolGeometry
from hicache_dbg.pools.host import HostPool, Mirror, host_geometry_like, host_pool_for
from hicache_dbg.pools.indices import Ids

FEW_PAGES = 7
SLOTS = 9

Snapshot = dict[str, torch.Tensor]
Place = tuple[int, int | slice]


@dataclass
class Verdict:
    """What came of one combination: steps done, bytes moved, and the first thing wrong."""

    steps: int = 0
    moved: int = 0
    wrong: list[str] = field(default_factory=list)


def canonical(pool: DevicePool | HostPool, name: str, device: torch.device) -> torch.Tensor:
    """Return a component's bytes as ``[layer, page, (slot, head,) byte]`` on ``device``."""
    buffer = pool.buffers[name]
    whole = "layer" in buffer.dims
    stacked = (buffer.tensors[0] if whole else torch.stack(buffer.tensors)).to(device)
    dims = buffer.dims if whole else ("layer", *buffer.dims)
    order = [dims.index(dim) for dim in ("layer", "page", "slot", "head", "byte") if dim in dims]
    return stacked.permute(order).contiguous().view(torch.uint8).clone()


def snapshot(pool: DevicePool | HostPool, device: torch.device) -> Snapshot:
    """Return the bytes of all components of a pool."""
    return {name: canonical(pool, name, device) for name in pool.buffers}


def slot_places(geometry: PoolGeometry, component: str, slot_id: int) -> list[Place]:
    """Return where a slot lies in canonical form, run by run."""
    page, slot = divmod(slot_id, geometry.slots_per_page)
    if not geometry.page_indexed:
        return [(page, slot)]
    spec = geometry.component(component)
    starts = [
        spec.run_offset(number, geometry.slots_per_page) + slot * run.slot_bytes
        for number, run in enumerate(spec.runs)
    ]
    return [
        (page, slice(start, start + run.slot_bytes))
        for start, run in zip(starts, spec.runs, strict=True)
    ]


def expect(
    geometry: PoolGeometry,
    target: Snapshot,
    source: Snapshot,
    into: Ids,
    out_of: Ids,
    *,
    single: bool,
) -> int:
    """Do to snapshots what the copy should do to the pools; returns the bytes that move."""
    moved = 0
    for name, tensor in target.items():
        if not single:
            here, there = (torch.from_numpy(ids).to(tensor.device) for ids in (into, out_of))
            tensor[:, here] = source[name][:, there]
            moved += tensor[:, 0].numel() * into.size
            continue
        for slots in zip(into.tolist(), out_of.tolist(), strict=True):
            places = zip(*(slot_places(geometry, name, slot) for slot in slots), strict=True)
            for at, origin in places:
                tensor[:, *at] = source[name][:, *origin]
                moved += tensor[:, *at].numel()
    return moved


def step(
    mirror: Mirror, combination: Combination, way: Way, ids: tuple[Ids, Ids], *, single: bool
) -> tuple[int, str]:
    """Make one copy; return the bytes moved, and what is wrong with the result, if anything."""
    kind, layout, backend = combination
    where = mirror.device.device
    host, device = snapshot(mirror.host, where), snapshot(mirror.device, where)
    geometry, (at_host, at_device) = mirror.device.geometry, ids
    if way == "backup":
        moved = expect(geometry, host, device, at_host, at_device, single=single)
    else:
        moved = expect(geometry, device, host, at_device, at_host, single=single)
    if where.type == "cuda":
        torch.cuda.synchronize()  # what was written is there: the copy has a stream of its own
    carry_out(operation(mirror, way, *ids, backend, single=single))
    for tier, pool, expected in (("host", mirror.host, host), ("device", mirror.device, device)):
        for name, value in snapshot(pool, where).items():
            if bad := int((value != expected[name]).sum()):
                what = f"{way} of {'slots' if single else 'pages'}: {bad} bytes of {name}"
                return moved, f"{kind} {layout} {backend}: {what} are wrong on the {tier}"
    return moved, ""


def round_trip(combination: Combination, pages: int, device: str, verdict: Verdict) -> None:
    """Back pages up, load them elsewhere, and the same with slots."""
    kind, layout, _ = combination
    rng = np.random.default_rng(len(kind))
    pool = DevicePool(KINDS[kind](), pages + 4, device)
    with host_pool_for(
        host_geometry_like(pool), pages + 6, layout, pin=device != "cpu"
    ) as host_pool:
        mirror = Mirror(pool, host_pool)
        fill(pool, 1, pool.device)
        fill(host_pool, 2, pool.device)
        slots = pool.geometry.slots_per_page
        sets = [(rng.permutation(pages + 6)[:pages], rng.permutation(pages + 4)[:pages], False)]
        if pool.geometry.single_slots:
            sets.append(
                (
                    rng.permutation((pages + 6) * slots)[:SLOTS],
                    rng.permutation((pages + 4) * slots)[:SLOTS],
                    True,
                )
            )
        for host, on_device, single in sets:
            elsewhere = on_device[::-1].copy()
            plan: list[tuple[Way, Ids]] = [("backup", on_device), ("load", elsewhere)]
            for way, ids in plan:
                moved, wrong = step(mirror, combination, way, (host, ids), single=single)
                verdict.steps += 1
                verdict.moved += moved
                verdict.wrong += [wrong] if wrong else []


def main() -> int:
    """Go round with all of them and say what came of it."""
    parser = argparse.ArgumentParser(description="Every pool, layout and io backend, byte by byte.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--mib", type=int, default=40, help="size of the larger moves, in MiB")
    options = parser.parse_args()
    if options.device != "cpu" and not torch.cuda.is_available():
        print("no CUDA device here; use --device cpu for the CPU's copies", file=sys.stderr)
        return 3
    name = "cpu" if options.device == "cpu" else torch.cuda.get_device_name(options.device)
    print(f"{name}, torch {torch.__version__}")
    print(f"{'pool':18} {'layout':18} {'backend':8} {'steps':>5} {'MiB':>6} {'s':>5}  bytes")
    wrong: list[str] = []
    done = list(combinations())
    for combination in done:
        start, verdict = time.perf_counter(), Verdict()
        geometry = KINDS[combination[0]]()
        many = (options.mib << 20) // (geometry.page_bytes() * geometry.layers)
        for pages in (FEW_PAGES, max(FEW_PAGES, many)):
            round_trip(combination, pages, options.device, verdict)
        wrong += verdict.wrong
        print(
            f"{combination[0]:18} {combination[1]:18} {combination[2]:8} {verdict.steps:5} "
            f"{verdict.moved / 2**20:6.0f} {time.perf_counter() - start:5.1f}  "
            f"{'WRONG' if verdict.wrong else 'equal'}",
            flush=True,
        )
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{len(done)} combinations, {len(wrong)} steps wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
