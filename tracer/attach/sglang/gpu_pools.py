"""The pools of this process whose device end is on a GPU, and the loads that are open on them."""

import threading
import weakref
from typing import Any

import torch

from hicache_dbg.tracer.attach.sglang.gpu import Lane
from hicache_dbg.tracer.attach.sglang.gpu_history import History
from hicache_dbg.tracer.attach.sglang.gpu_ops import DeviceOp, DevicePool
from hicache_dbg.tracer.attach.sglang.registry import PoolRecord

__all__ = ["DevicePools"]


class _Loads(threading.local):
    """The loads that are open on the current thread, by their pool's identity."""

    def __init__(self) -> None:
        self.by_pool: dict[int, DeviceOp] = {}


class DevicePools:
    """Made ready when they are built, so that nothing compiles or allocates while copies run."""

    def __init__(self) -> None:
        self.history = History()
        self._pools: dict[int, DevicePool] = {}
        self._lanes: dict[str, Lane] = {}
        self._loads = _Loads()

    def add(self, pool: Any, record: PoolRecord) -> None:
        """Compile what digests of this pool need, where its device end is on a GPU."""
        views = record.mirror.device
        devices = {view.device for view in views.values()}
        if record.geometry is None or len(devices) != 1:
            return
        (device,) = devices
        if torch.device(device).type != "cuda":
            return
        with torch.cuda.device(device):  # a thread that came late has no device of its own yet
            lane = self._lanes.get(device) or self._lanes.setdefault(device, Lane(device))
            for view in views.values():
                lane.digester.prepare(view)
                weakref.finalize(pool, lane.digester.forget, view)
        size = sum(view.tile_bytes() for view in views.values())
        self._pools[id(pool)] = DevicePool(record, lane, views, size)
        weakref.finalize(pool, self._pools.pop, id(pool), None)

    def of(self, pool: Any) -> DevicePool | None:
        """The pool, if its device end is on a GPU; None while a graph is captured, which keeps out."""
        known = self._pools.get(id(pool))
        if known is not None and known.lane.captures():
            return None
        return known

    def enter(self, op: DeviceOp) -> None:
        """A load is open on this thread until it is left."""
        loads, key = self._loads.by_pool, id(op.given.pool)
        loads[key] = op
        op.leave = lambda: loads.pop(key, None)

    def counts(self, pool: Any, args: tuple[Any, ...]) -> bool:
        """Whether a call brings another layer of a load that is open, and nothing more is to be done.

        ``args`` are those of the pool's method: device pool, host indices, device indices, layer.
        """
        op = self._loads.by_pool.get(id(pool))
        return op is not None and len(args) >= 4 and op.counts(args[1], args[2], args[3])
