"""How a run's engine is built: a plan that faults may modify, and the construction itself."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import IoBackend, Layout, PoolGeometry
from hicache_dbg.pools.host import HostPool, Mirror, host_geometry_like
from hicache_dbg.repro.config import RunConfig

__all__ = [
    "DeviceMissing",
    "EnginePlan",
    "HostFormula",
    "device_pools",
    "mirrors",
    "plan_of",
    "torch_device",
]

HostFormula = Callable[[DevicePool], PoolGeometry]
"""How a host pool class sizes itself as the mirror of a device pool."""


class DeviceMissing(RuntimeError):  # noqa: N818 (a state of the machine, not of the program)
    """The device that a run asks for is not available."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """The decisions of an engine's builder, as tables.

    ``pools`` are the geometries of the device pools, the anchor first. ``host_class`` maps a pool's
    name to the class of its mirror; ``host_formula`` maps a host pool class to the function that
    sizes it (default: from the device's tensors). A class may have a formula without mirroring any
    pool. ``pin`` says whether to page-lock host memory.
    """

    pools: tuple[PoolGeometry, ...]
    layout: Layout
    io_backend: IoBackend
    host_pages: int
    pin: bool
    host_class: Mapping[str, type[HostPool]]
    host_formula: Mapping[type[HostPool], HostFormula]


def plan_of(config: RunConfig) -> EnginePlan:
    """Return the plan without a fault: host pools take their geometry from the device's tensors."""
    return EnginePlan(
        pools=config.pool_set.geometries(config.index_dtype),
        layout=Layout(config.layout),
        io_backend=config.backend,
        host_pages=config.host_pages or 0,
        pin=config.device == "cuda",
        host_class=config.pool_set.host_class,
        host_formula={},
    )


def torch_device(name: str) -> torch.device:
    """Return the device called ``name`` (``cpu``, or ``cuda`` for the current one).

    Raises:
        DeviceMissing: there is none; the message includes torch's reason.
    """
    if name != "cuda":
        return torch.device(name)
    if not torch.cuda.is_available():
        raise DeviceMissing(
            f"device is 'cuda', but torch {torch.__version__} finds no CUDA device here; "
            "use --device cpu, or a machine with a GPU and a CUDA build of torch"
        )
    return torch.device(name, torch.cuda.current_device())


def device_pools(
    geometries: Iterable[PoolGeometry], pages: int, device: torch.device
) -> dict[str, DevicePool]:
    """Create device pools of ``pages`` pages each, by name."""
    return {geometry.name: DevicePool(geometry, pages, device) for geometry in geometries}


def mirrors(plan: EnginePlan, pools: Mapping[str, DevicePool]) -> tuple[Mirror, ...]:
    """Build the host pool of each device pool as the plan says."""
    return tuple(Mirror(pool, _host_pool(plan, pool)) for pool in pools.values())


def _host_pool(plan: EnginePlan, device: DevicePool) -> HostPool:
    cls = plan.host_class[device.geometry.name]
    formula = plan.host_formula.get(cls, host_geometry_like)
    return cls(formula(device), plan.host_pages, plan.layout, plan.pin)
