"""A pool set: which pools a model keeps its cache in, and the sizes that suit it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import Layout, PoolGeometry
from hicache_dbg.pools.host import HostPool
from hicache_dbg.pools.kinds import IndexDtype
from hicache_dbg.repro.model import Model
from hicache_dbg.repro.workload import Reply, Turn

__all__ = ["PoolSet"]


@dataclass(frozen=True, slots=True)
class PoolSet:
    """Pools under one anchor, and the model over them.

    Attributes:
        page_size: tokens a page, in every pool of the set.
        ctx: tokens of a session's first prompt by default.
        session_device_pages: device pages by default: any one session fits, thirty do not; None: as
            many as the longest session needs.
        trace_device_pages: the same for the replay of a trace.
        host_class: the class that mirrors each pool, by the pool's name.
        geometries: of the device pools, the anchor first, given what index-K is stored in.
        model: over device pools of those geometries, by name; its weights lie where they do.
        alone: how the ground truth answers a turn where it wants no pools; None: by the same model
            over pools that hold all.
        host_pages: host pages by default, enough for all sessions.
        kill_after: pages that a process is to have stored before it is killed.
    """

    page_size: int
    ctx: int
    session_device_pages: int | None
    trace_device_pages: int
    host_class: Mapping[str, type[HostPool]]
    geometries: Callable[[IndexDtype], tuple[PoolGeometry, ...]]
    model: Callable[[Mapping[str, DevicePool]], Model]
    alone: Callable[[Turn], Reply] | None = None
    host_pages: int = 2560
    kill_after: int = 32

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The host layouts that every pool of the set can be kept in."""
        classes = self.host_class.values()
        return tuple(layout for layout in Layout if all(layout in cls.layouts for cls in classes))
