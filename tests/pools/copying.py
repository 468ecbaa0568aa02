"""Pools of every kind filled with random bytes, and the expected result of a copy between them."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch

from hicache_dbg.pools.buffer import Buffer
from hicache_dbg.pools.deepseek_v4 import (
    deepseek_v4_c4,
    deepseek_v4_c4_indexer,
    deepseek_v4_c4_indexer_state,
    deepseek_v4_c4_state,
    deepseek_v4_c128,
    deepseek_v4_swa,
)
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import Component, IoBackend, Layout, PoolGeometry
from hicache_dbg.pools.host import HostPool, Mirror, host_geometry_like, host_pool_for
from hicache_dbg.pools.indices import Indices
from hicache_dbg.pools.kinds import index_k, mha, mla
from hicache_dbg.pools.transfer import CopyOp, PoolCopy, TransferEngine
from hicache_dbg.pools.validate import LAYOUTS_OF

Pool = DevicePool | HostPool
Snapshot = dict[str, torch.Tensor]
Combination = tuple[str, Layout, IoBackend]
Way = Literal["backup", "load"]
WAYS: tuple[Way, ...] = ("backup", "load")

KINDS: dict[str, Callable[[int], PoolGeometry]] = {
    "mla_bf16": lambda layers: mla(layers, 3),
    "mla_fp8": lambda layers: mla(layers, 5, torch.uint8),
    "index_k_bf16": lambda layers: index_k(layers, 4, "bf16"),
    "index_k_fp8": lambda layers: index_k(layers, 3, "fp8"),
    "mha": lambda layers: mha(layers, 2, heads=3, head_dim=8, v_head_dim=4),
    "mha_one_head": lambda layers: mha(layers, 3, heads=1, head_dim=8),
    "c4": lambda layers: deepseek_v4_c4(layers, 12),
    "c128": deepseek_v4_c128,
    "swa": lambda layers: deepseek_v4_swa(layers, 4),
    "c4_indexer_fp8": lambda layers: deepseek_v4_c4_indexer(layers, 12),
    "c4_indexer_bf16": lambda layers: deepseek_v4_c4_indexer(layers, 16, "bf16"),
    "c4_state": lambda layers: deepseek_v4_c4_state(layers, 8, ring=2),
    "c4_indexer_state": lambda layers: deepseek_v4_c4_indexer_state(layers, 8, ring=2),
}
COMBINATIONS: list[Combination] = [
    (kind, layout, backend)
    for kind in KINDS
    for backend, layouts in LAYOUTS_OF.items()
    for layout in layouts
    if layout is not Layout.PAGE_HEAD or kind.startswith("mha")
]
GUARD = 64
CANARY = 0xA5


def guard(pool: Pool, seed: int) -> list[torch.Tensor]:
    """Put random bytes into every buffer and canaries around its memory; return the memories."""
    generator = torch.Generator().manual_seed(seed)
    memories = []
    for name, buffer in pool.buffers.items():
        tensors = []
        for tensor in buffer.tensors:
            size = tensor.numel() * tensor.element_size()
            memory = torch.full((size + 2 * GUARD,), CANARY, dtype=torch.uint8)
            memory[GUARD:-GUARD] = torch.randint(
                256, (size,), dtype=torch.uint8, generator=generator
            )
            memories.append(memory)
            tensors.append(memory[GUARD:-GUARD].view(tensor.dtype).view(tensor.shape))
        pool.buffers[name] = Buffer(buffer.component, tuple(tensors), buffer.dims)
    return memories


def canaries_live(memories: list[torch.Tensor]) -> bool:
    """Return whether no byte outside the tensors was written."""
    return all(
        bool((memory[:GUARD] == CANARY).all() and (memory[-GUARD:] == CANARY).all())
        for memory in memories
    )


def canonical(pool: Pool, name: str) -> torch.Tensor:
    """Return a component's bytes as ``[layer, page, (slot, head,) byte]``, by axis names alone."""
    buffer = pool.buffers[name]
    stacked = buffer.tensors[0] if "layer" in buffer.dims else torch.stack(buffer.tensors)
    dims = buffer.dims if "layer" in buffer.dims else ("layer", *buffer.dims)
    order = [dims.index(dim) for dim in ("layer", "page", "slot", "head", "byte") if dim in dims]
    return stacked.permute(order).contiguous().view(torch.uint8).cpu().clone()


def fill(pool: Pool, seed: int) -> None:
    """Put random bytes into every buffer, on any device."""
    generator = torch.Generator().manual_seed(seed)
    for buffer in pool.buffers.values():
        for number in range(len(buffer.tensors)):
            flat = buffer.flat(number)
            flat.copy_(torch.randint(256, flat.shape, dtype=torch.uint8, generator=generator))


def snapshot(pool: Pool) -> Snapshot:
    """Return all components of a pool in canonical form."""
    return {name: canonical(pool, name) for name in pool.buffers}


def mirror_of(
    kind: str, layout: Layout, *, layers: int, host_pages: int, device_pages: int, seed: int
) -> tuple[Mirror, list[torch.Tensor]]:
    """Return a mirror full of random bytes, and the guarded memory of its two ends."""
    device = DevicePool(KINDS[kind](layers), device_pages)
    host = host_pool_for(host_geometry_like(device), host_pages, layout)
    memories = guard(host, seed) + guard(device, seed + 1)
    return Mirror(device, host), memories


def pool_copy(
    mirror: Mirror,
    host: Sequence[int],
    device: Sequence[int],
    backend: IoBackend,
    *,
    single: bool = False,
) -> PoolCopy:
    """Return a copy of all layers of these pages, or of single slots, of one mirror."""
    geometry = mirror.device.geometry
    at_host, at_device = (
        Indices.slots(ids) if single else Indices.pages(ids, geometry) for ids in (host, device)
    )
    return PoolCopy(mirror, at_host, at_device, single, backend, tuple(range(geometry.layers)))


def run(
    mirror: Mirror,
    kind: Way,
    host: list[int],
    device: list[int],
    *,
    backend: IoBackend,
    single: bool = False,
) -> list[int]:
    """Carry out one operation on one mirror and return the layers reported done."""
    copy = pool_copy(mirror, host, device, backend, single=single)
    op = CopyOp(1, kind, (copy,), np.zeros(len(host), dtype=np.uint32))
    done: list[int] = []
    engine = TransferEngine()
    if kind == "backup":
        engine.backup(op)
    else:
        engine.load(op, done.append)
    assert op.status == "done"
    return done


def name_of(combination: Combination) -> str:
    """Return a combination as a test id."""
    return "-".join(combination)


def assert_equal(mirror: Mirror, host: Snapshot, device: Snapshot) -> None:
    """Check that both ends hold exactly these bytes."""
    ends: list[tuple[Pool, Snapshot]] = [(mirror.host, host), (mirror.device, device)]
    for pool, expected in ends:
        for name, value in snapshot(pool).items():
            assert torch.equal(value, expected[name]), (type(pool).__name__, name)


def slot_places(
    component: Component, geometry: PoolGeometry, slot_id: int
) -> list[tuple[int, int | slice]]:
    """Return where a slot lies in canonical form, run by run."""
    page, slot = divmod(slot_id, geometry.slots_per_page)
    if not geometry.page_indexed:
        return [(page, slot)]
    places: list[tuple[int, int | slice]] = []
    offset = 0
    for run_spec in component.runs:
        begin = offset + slot * run_spec.slot_bytes
        places.append((page, slice(begin, begin + run_spec.slot_bytes)))
        offset += run_spec.slot_bytes * geometry.slots_per_page
    return places


def ends_after(
    mirror: Mirror, way: Way, host: Sequence[int], device: Sequence[int], *, single: bool = False
) -> tuple[Snapshot, Snapshot]:
    """Return what host and device should hold after these pages, or single slots, are copied."""
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
            places = (slot_places(component, geometry, slot) for slot in (here, there))
            for at, origin in zip(*places, strict=True):
                target[name][:, *at] = source[name][:, *origin]
    return ends
