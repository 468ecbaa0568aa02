"""Back up and load every pool in every layout with every io backend, and compare each byte.

    python -m benchmarks.roundtrip_gpu                    # needs a CUDA device
    python -m benchmarks.roundtrip_gpu --device cpu --mib 1

Whole pages are backed up and loaded to other places, then single slots if the pool allows it. After
each step both ends are compared as a whole, so a byte written beside the target is found too. Each
combination runs with a few pages, and with ``--mib`` of pages, so many that copy engines take a share.
Prints one line per combination, and exits 1 if one of them is wrong.
"""

import argparse
import sys
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from benchmarks.copy_rig import KINDS, Combination, Step, combinations, execute, fill, operation

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import PoolGeometry
from hicache_dbg.pools.host import HostPool, Mirror, host_geometry_like, host_pool_for

FEW_PAGES = 7
SLOTS = 9

Snapshot = dict[str, torch.Tensor]
Place = tuple[int, int | slice]


@dataclass
class Verdict:
    """The result of one combination: steps done, bytes moved, and what was wrong in each bad step."""

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


def copy_snapshot(geometry: PoolGeometry, host: Snapshot, device: Snapshot, step: Step) -> int:
    """Do to snapshots what ``step`` should do to the pools; return the bytes that move."""
    if step.direction == "backup":
        target, source, into, out_of = host, device, step.host, step.device
    else:
        target, source, into, out_of = device, host, step.device, step.host
    moved = 0
    for name, tensor in target.items():
        if step.single:
            pairs = zip(into.tolist(), out_of.tolist(), strict=True)
            moved += sum(_copy_slot(geometry, name, tensor, source[name], pair) for pair in pairs)
        else:
            to, at = (torch.from_numpy(ids).to(tensor.device) for ids in (into, out_of))
            tensor[:, to] = source[name][:, at]
            moved += tensor[:, 0].numel() * into.size
    return moved


def _copy_slot(
    geometry: PoolGeometry,
    name: str,
    target: torch.Tensor,
    source: torch.Tensor,
    slots: tuple[int, int],
) -> int:
    """Copy one slot between snapshots, to the first of ``slots``; return its bytes."""
    to, at = (slot_places(geometry, name, slot) for slot in slots)
    moved = 0
    for new, old in zip(to, at, strict=True):
        target[:, *new] = source[:, *old]
        moved += target[:, *new].numel()
    return moved


def copied(mirror: Mirror, combination: Combination, step: Step) -> tuple[int, str]:
    """Execute one step; return the bytes moved, and what is wrong with the result, if anything."""
    kind, layout, backend = combination
    where = mirror.device.device
    host, device = snapshot(mirror.host, where), snapshot(mirror.device, where)
    moved = copy_snapshot(mirror.device.geometry, host, device, step)
    if where.type == "cuda":
        torch.cuda.synchronize()  # the copy has its own stream, and must see all that was written
    execute(operation(mirror, step, backend))
    for tier, pool, expected in (("host", mirror.host, host), ("device", mirror.device, device)):
        for name, value in snapshot(pool, where).items():
            if bad := int((value != expected[name]).sum()):
                unit = "slots" if step.single else "pages"
                what = f"{step.direction} of {unit}: {bad} bytes of {name}"
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
            for step in (
                Step("backup", host, on_device, single),
                Step("load", host, elsewhere, single),
            ):
                moved, wrong = copied(mirror, combination, step)
                verdict.steps += 1
                verdict.moved += moved
                verdict.wrong += [wrong] if wrong else []


def main() -> int:
    """Run every combination and print its result."""
    parser = argparse.ArgumentParser(description="Check every pool, layout and io backend.")
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
