"""Ranks that divide a pool's layers: each owner broadcasts its layers when they are read."""

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch

from hicache_dbg.tracer.attach.sglang.arguments import argument
from hicache_dbg.tracer.attach.sglang.around import around
from hicache_dbg.tracer.attach.sglang.broadcast_digests import Arrival, BroadcastDigests
from hicache_dbg.tracer.attach.sglang.broadcast_loads import Load
from hicache_dbg.tracer.attach.sglang.classes import ours

__all__ = ["OWNER_BROADCAST", "LayerSplitBroadcasts"]

Function = Callable[..., Any]

#: Module, class and method through which ranks receive layers owned by another rank.
OWNER_BROADCAST = (
    "sglang.srt.mem_cache.dsa_cache_layer_split",
    "LayerSplitDSATokenToKVPool",
    "_broadcast_tensor_from_owner",
)


class LayerSplitBroadcasts:
    """Digests the pages of the latest load of each device pool as their layers arrive."""

    def __init__(self, digests: BroadcastDigests) -> None:
        self._digests = digests
        self._say = digests.say
        self._loads: WeakKeyDictionary[Any, Load] = WeakKeyDictionary()

    def loading(self, original: Function) -> Function:
        """Wrap a controller's ``start_loading``, which names the pages of a load."""

        def before(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
            pool = getattr(args[0], "mem_pool_device", None)
            if not getattr(pool, "layer_shard_enabled", False):
                return None
            if not self._say.on():
                if args[0].load_queue:
                    self._digests.count(pool)  # the other ranks may be traced
                    self._close(pool)
                return None
            return pool, [operation.device_indices for operation in args[0].load_queue]

        def after(about: Any, _: Any, error: BaseException | None) -> None:
            pool, indices = about
            if error is None and indices:
                self._begin(pool, indices)

        watched = around(self._say, "attach/broadcast", original, before, after)

        @wraps(original)
        def start_loading(*args: Any, **kwargs: Any) -> Any:
            if OWNER_BROADCAST[0] not in sys.modules:  # no pool of this process divides its layers
                return original(*args, **kwargs)
            return watched(*args, **kwargs)

        return ours(start_loading)

    def _begin(self, device_pool: Any, indices: Sequence[torch.Tensor]) -> None:
        previous = self._loads.get(device_pool)
        if previous is not None:
            self._digests.finish(previous)
        name = f"load {self._digests.count(device_pool)}"
        self._loads[device_pool] = Load(name, int(device_pool.layer_num), torch.cat(list(indices)))

    def _close(self, device_pool: Any) -> None:
        """Take no more arrivals for the previous load: the next ones are of a load that is not traced."""
        previous = self._loads.get(device_pool)
        if previous is not None:
            previous.indices = None

    def shared(self, original: Function) -> Function:
        """Wrap the owner's broadcast of one layer's tensor."""
        tensor_of, layer_of = argument(original, "tensor"), argument(original, "layer_id")

        def before(*call: Any) -> Any:
            load = self._loads.get(call[0][0]) if self._loads else None
            return (load, call) if load is not None and load.indices is not None else None

        def after(about: Any, _: Any, error: BaseException | None) -> None:
            load, call = about
            if error is None:
                pool = call[0][0]
                layer = int(layer_of(*call)) - int(pool.start_layer)
                self._arrived(load, pool, tensor_of(*call), layer)

        return around(self._say, "attach/broadcast", original, before, after)

    def _arrived(self, load: Load, pool: Any, tensor: torch.Tensor, layer: int) -> None:
        """Digest a load's pages in a tensor, unless that was done when it arrived before."""
        latent = tensor is getattr(pool, "remote_kv_buffer", None)
        component, page = ("latent" if latent else "index_k"), int(pool.page_size)
        if layer in load.arrived.get(component, ()) or load.indices is None:
            return
        if latent:
            arrival = Arrival(component, layer, tensor, load.indices, page)
        else:
            arrival = Arrival(component, layer, tensor, load.indices[::page] // page)
        self._digests.arrived(load, arrival)
        if len(load.arrived.get(component, ())) == load.layers:
            self._digests.finish(load, component=component)
