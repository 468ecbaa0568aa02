"""The pools that hold index-K, and the host formula of both acts: sized as fp8, whatever is stored."""

from dataclasses import replace

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import PoolGeometry
from hicache_dbg.pools.host import host_geometry_like
from hicache_dbg.pools.kinds import index_k_component
from hicache_dbg.repro.config import ConfigError, RunConfig
from hicache_dbg.repro.engine import EnginePlan

__all__ = ["index_pools", "sized_as_fp8", "stores_fp8"]

_INDEX_K = "index_k"
_HEAD_DIM = 128


def index_pools(plan: EnginePlan, fault: str) -> tuple[str, ...]:
    """Return the names of the pools that hold index-K.

    Raises:
        ConfigError: there is none, so that ``fault`` would change nothing.
    """
    names = tuple(pool.name for pool in plan.pools if _holds_index_k(pool))
    if not names:
        have = ", ".join(pool.name for pool in plan.pools)
        raise ConfigError(
            f"fault {fault} is in the mirror of index-K, and none of these pools holds any: {have}; "
            "use pools mla_index_k or deepseek_v4"
        )
    return names


def sized_as_fp8(device: DevicePool) -> PoolGeometry:
    """Return a host geometry with a hard-coded 128 + 128 / 128 * 4 = 132 B per key, the fp8 size.

    If the device stores bf16 (256 B per key), a host page of 64 keys has 8,448 B for a device page
    of 16,384 B: a copy moves keys 0..32 of each page and leaves 33..63 alone. Pools without index-K
    are sized by their tensors.
    """
    if not _holds_index_k(device.geometry):
        return host_geometry_like(device)
    component = index_k_component(_INDEX_K, "fp8", _HEAD_DIM)
    return replace(device.geometry, components=(component,))


def stores_fp8(config: RunConfig) -> bool:
    """Return whether the fp8 formula is the right one."""
    return config.index_dtype == "fp8"


def _holds_index_k(pool: PoolGeometry) -> bool:
    return any(component.name == _INDEX_K for component in pool.components)
