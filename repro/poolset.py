"""A pool set: the pools in which a model keeps its cache, and the sizes that suit it."""

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
        page_size: tokens per page, in every pool of the set.
        ctx: default number of tokens of a session's first prompt.
        session_device_pages: default device pages: enough for any one session, not for thirty; None
            for as many as the longest session needs.
        trace_device_pages: the same for the replay of a trace.
        host_class: the class that mirrors each pool, by the pool's name.
        geometries: returns the device pools' geometries, the anchor first, for an index-K storage
            type.
        model: builds the model over device pools of those geometries, by name; its weights are on
            the same device.
        alone: answers a turn of the ground truth without pools; None to use the same model over
            pools that hold everything.
        host_pages: default host pages, enough for all sessions.
        kill_after: pages a process must have stored before it is killed.
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
        """Host layouts that every pool of the set supports."""
        classes = self.host_class.values()
        return tuple(layout for layout in Layout if all(layout in cls.layouts for cls in classes))
