"""How a run's engine is built: a plan that faults may change, and the building of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import IoBackend, Layout, PoolGeometry
from hicache_dbg.pools.host import (
    HostPool,
    IndexKHostPool,
    LatentHostPool,
    Mirror,
    PagedHostPool,
    host_geometry_like,
)
from hicache_dbg.pools.kinds import index_k, mla
from hicache_dbg.repro.config import PAGE_SIZE, RunConfig
from hicache_dbg.repro.kvio import KvStore, LatentStore, index_store
from hicache_dbg.repro.weights import ModelSpec

__all__ = ["EnginePlan", "HostFormula", "device_pools", "kv_store", "mirrors", "plan_of"]

HostFormula = Callable[[DevicePool], PoolGeometry]
"""How a host pool class sizes itself as the mirror of a device pool."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """The decisions that an engine's builder takes, as tables.

    ``host_class`` maps a pool's name to the class of its mirror, ``host_formula`` a host pool class
    to how it sizes itself. A class may have a formula and yet mirror no pool.
    """

    layout: Layout
    io_backend: IoBackend
    host_pages: int
    host_class: Mapping[str, type[HostPool]]
    host_formula: Mapping[type[HostPool], HostFormula]


def plan_of(config: RunConfig) -> EnginePlan:
    """The plan without a fault: each host pool takes its geometry from the device's tensors."""
    return EnginePlan(
        layout=Layout(config.layout),
        io_backend=config.backend,
        host_pages=config.host_pages,
        host_class={"mla": LatentHostPool, "dsa_index_k": IndexKHostPool},
        host_formula={
            LatentHostPool: host_geometry_like,
            IndexKHostPool: host_geometry_like,
            PagedHostPool: host_geometry_like,
        },
    )


def device_pools(config: RunConfig, spec: ModelSpec, pages: int) -> tuple[DevicePool, DevicePool]:
    """The model's latent and index-K pools of ``pages`` pages each."""
    latent = mla(spec.layers, PAGE_SIZE, kv_lora_rank=spec.kv_lora_rank, rope_dim=spec.rope_dim)
    keys = index_k(spec.layers, PAGE_SIZE, config.index_dtype, spec.index_dim)
    return DevicePool(latent, pages), DevicePool(keys, pages)


def kv_store(pools: tuple[DevicePool, DevicePool], spec: ModelSpec) -> KvStore:
    """What the model reads and writes those pools through."""
    latent, keys = pools
    return KvStore(LatentStore(latent), index_store(keys, spec.index_dim))


def mirrors(plan: EnginePlan, pools: tuple[DevicePool, ...]) -> tuple[Mirror, ...]:
    """Build the host pool of each device pool as the plan says."""
    return tuple(Mirror(pool, _host_pool(plan, pool)) for pool in pools)


def _host_pool(plan: EnginePlan, device: DevicePool) -> HostPool:
    cls = plan.host_class[device.geometry.name]
    return cls(plan.host_formula[cls](device), plan.host_pages, plan.layout)
