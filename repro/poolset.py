"""A pool set: which pools a model keeps its cache in, and the sizes that suit it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import Layout, PoolGeometry
from hicache_dbg.pools.host import HostPool
from hicache_dbg.pools.kinds import IndexDtype
from hicache_dbg.repro.model import Model

__all__ = ["PoolSet"]


@dataclass(frozen=True, slots=True)
class PoolSet:
    """Pools under one anchor, and the model over them.

    Attributes:
        page_size: tokens a page, in every pool of the set.
        ctx: tokens of a session's first prompt by default.
        session_device_pages: device pages by default: any one session fits, thirty do not.
        trace_device_pages: the same for the replay of a trace.
        host_class: the class that mirrors each pool, by the pool's name.
        geometries: of the device pools, the anchor first, given what index-K is stored in.
        model: over device pools of those geometries, by name; its weights lie where they do.
    """

    page_size: int
    ctx: int
    session_device_pages: int
    trace_device_pages: int
    host_class: Mapping[str, type[HostPool]]
    geometries: Callable[[IndexDtype], tuple[PoolGeometry, ...]]
    model: Callable[[Mapping[str, DevicePool]], Model]

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The host layouts that every pool of the set can be kept in."""
        classes = self.host_class.values()
        return tuple(layout for layout in Layout if all(layout in cls.layouts for cls in classes))
