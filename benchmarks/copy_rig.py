"""What the benchmarks of copies share: pools of every kind, and one operation on one mirror."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from hicache_dbg.pools.deepseek_v4 import (
    deepseek_v4_c4,
    deepseek_v4_c4_indexer,
    deepseek_v4_c4_indexer_state,
    deepseek_v4_c4_state,
    deepseek_v4_c128,
    deepseek_v4_swa,
)
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import IoBackend, Layout, PoolGeometry
from hicache_dbg.pools.host import HostPool, Mirror
from hicache_dbg.pools.indices import Ids, Indices
from hicache_dbg.pools.kinds import index_k, mha, mla
from hicache_dbg.pools.transfer import CopyOp, PoolCopy, TransferEngine
from hicache_dbg.pools.validate import LAYOUTS_OF

Direction = Literal["backup", "load"]
#: Pool kind, layout and io backend.
Combination = tuple[str, Layout, IoBackend]

KINDS: dict[str, Callable[[], PoolGeometry]] = {
    "mla bf16": lambda: mla(4, 64),
    "mla fp8": lambda: mla(3, 16, torch.uint8),
    "index_k bf16": lambda: index_k(3, 64, "bf16"),
    "index_k fp8": lambda: index_k(3, 64, "fp8"),
    "mha": lambda: mha(4, 64, heads=8, head_dim=128, v_head_dim=64),
    "mha one head": lambda: mha(3, 16, heads=1, head_dim=64),
    "swa": lambda: deepseek_v4_swa(2),
    "c4": lambda: deepseek_v4_c4(3),
    "c128": lambda: deepseek_v4_c128(21),
    "c4 indexer fp8": lambda: deepseek_v4_c4_indexer(3),
    "c4 indexer bf16": lambda: deepseek_v4_c4_indexer(3, dtype="bf16"),
    "c4 state": lambda: deepseek_v4_c4_state(2),
    "c4 indexer state": lambda: deepseek_v4_c4_indexer_state(3),
}

_ENGINE = TransferEngine()


@dataclass(frozen=True)
class Step:
    """One copy: its direction, and the pages at both ends; with ``single`` the ids are slots."""

    direction: Direction
    host: Ids
    device: Ids
    single: bool = False


def combinations() -> Iterator[Combination]:
    """Yield every pool kind in every layout with every io backend that supports it."""
    for kind in KINDS:
        for backend, layouts in LAYOUTS_OF.items():
            for layout in layouts:
                if layout is not Layout.PAGE_HEAD or kind.startswith("mha"):
                    yield kind, layout, backend


def fill(pool: DevicePool | HostPool, seed: int, device: torch.device) -> None:
    """Fill a pool with random bytes drawn on ``device``."""
    generator = torch.Generator(device).manual_seed(seed)
    for buffer in pool.buffers.values():
        for number in range(len(buffer.tensors)):
            flat = buffer.flat(number)
            drawn = torch.empty(flat.shape, dtype=torch.uint8, device=device)
            flat.copy_(drawn.random_(0, 256, generator=generator))


def operation(mirror: Mirror, step: Step, backend: IoBackend) -> CopyOp:
    """Return an operation that copies all layers of one mirror."""
    geometry = mirror.device.geometry
    host, device = (
        Indices.slots(ids) if step.single else Indices.pages(ids, geometry)
        for ids in (step.host, step.device)
    )
    layers = tuple(range(geometry.layers))
    copy = PoolCopy(mirror, host, device, step.single, backend, layers)
    return CopyOp(1, step.direction, (copy,), np.zeros(step.host.size, dtype=np.uint32))


def execute(op: CopyOp) -> None:
    """Execute an operation; the bytes have arrived on return."""
    if op.kind == "backup":
        _ENGINE.backup(op)
    else:
        _ENGINE.load(op, lambda _: None)
