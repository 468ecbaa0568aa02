"""This process's pools whose device end is on a GPU."""

import weakref
from typing import Any

import torch

from hicache_dbg.tracer.attach.sglang.gpu import Lane
from hicache_dbg.tracer.attach.sglang.gpu_history import History
from hicache_dbg.tracer.attach.sglang.gpu_plans import DevicePool
from hicache_dbg.tracer.attach.sglang.registry import PoolRecord

__all__ = ["DevicePools"]


class DevicePools:
    """The pools by identity, prepared when they are built so that nothing compiles while copies run."""

    def __init__(self) -> None:
        self.history = History()
        self.by_pool: dict[int, DevicePool] = {}
        self._lanes: dict[str, Lane] = {}

    def add(self, pool: Any, record: PoolRecord) -> None:
        """Compile and upload what digests of this pool need, if its device end is on a GPU."""
        views = record.mirror.device
        devices = {view.device for view in views.values()}
        if record.geometry is None or len(devices) != 1:
            return
        (device,) = devices
        if torch.device(device).type != "cuda":
            return
        with torch.cuda.device(device):  # a thread that attaches late has no current device yet
            lane = self._lanes.get(device) or self._lanes.setdefault(device, Lane(device))
            for view in views.values():
                lane.digester.prepare(view)
        size = sum(view.tile_bytes() for view in views.values())
        launch = getattr(lane.digester, "whole_launch", None)
        if any(view.layers != record.mirror.layers for view in views.values()):
            launch = None
        whole = tuple((name, launch(view)) for name, view in views.items()) if launch else ()
        self.by_pool[id(pool)] = DevicePool(record, lane, views, size, whole)
        weakref.finalize(pool, self.by_pool.pop, id(pool), None)

    def of(self, pool: Any) -> DevicePool | None:
        """Return the pool, or None if its device end is not on a GPU or a graph is being captured."""
        known = self.by_pool.get(id(pool))
        if known is not None and known.lane.captures():
            return None
        return known
