"""Ranks that keep a single host copy of a latent pool among them: one loads it for all."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from hicache_dbg.tracer.attach.sglang.arguments import argument
from hicache_dbg.tracer.attach.sglang.around import around
from hicache_dbg.tracer.attach.sglang.broadcast_digests import Arrival, BroadcastDigests
from hicache_dbg.tracer.attach.sglang.broadcast_loads import Load

__all__ = ["BROADCASTER", "DedupBroadcasts"]

Function = Callable[..., Any]

#: Module and class through which ranks without a copy of a latent pool take part in a load.
BROADCASTER = ("sglang.srt.mem_cache.mla_host_dedup", "MLAHostDedupBroadcaster")
#: Most loads of one broadcaster in flight at once.
_IN_FLIGHT = 8


class _Inside(threading.local):
    """Per thread: the load whose tensors are being broadcast."""

    load: Load | None = None


class DedupBroadcasts:
    """Follows the loads of each broadcaster, from ``prepare_broadcast`` to the last layer."""

    def __init__(self, digests: BroadcastDigests) -> None:
        self._digests = digests
        self._say = digests.say
        self._inside = _Inside()
        #: By broadcaster: its prepared loads, by the identity of what SGLang prepared.
        self._prepared: WeakKeyDictionary[Any, OrderedDict[int, tuple[Any, Load]]] = (
            WeakKeyDictionary()
        )

    def preparing(self, original: Function) -> Function:
        """Wrap ``prepare_broadcast``: a load to all ranks begins."""

        def before(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
            if self._inside.load is not None:
                return None  # part of the load that is being prepared
            self._inside.load = load = Load("", 0)
            return args[0], load

        def after(about: Any, prepared: Any, error: BaseException | None) -> None:
            broadcaster, load = about
            self._inside.load = None
            if error is not None:
                return
            number = self._digests.count(broadcaster)  # traced or not: other ranks may be
            if not self._say.on():
                return
            load.layers = int(broadcaster.layer_num)
            load.name = f"broadcast {number}"
            in_flight = self._prepared.setdefault(broadcaster, OrderedDict())
            in_flight[id(prepared)] = prepared, load
            while len(in_flight) > _IN_FLIGHT:
                in_flight.popitem(last=False)

        return around(self._say, "attach/broadcast", original, before, after)

    def arriving(self, original: Function) -> Function:
        """Wrap ``broadcast_loaded_layer``: one layer of a load, with all its tensors."""
        prepared_of, layer_of = argument(original, "prepared"), argument(original, "layer_id")

        def before(*call: Any) -> Any:
            prepared, broadcaster = prepared_of(*call), call[0][0]
            loads = self._prepared.get(broadcaster)
            known = loads.get(id(prepared)) if loads is not None else None
            if known is None or known[0] is not prepared or self._inside.load is not None:
                return None
            self._inside.load = load = known[1]
            return broadcaster, prepared, load, layer_of(*call)

        def after(about: Any, _: Any, error: BaseException | None) -> None:
            broadcaster, prepared, load, layer = about
            self._inside.load = None
            if error is None and layer == load.layers - 1:
                self._prepared[broadcaster].pop(id(prepared), None)
                receiver = None if broadcaster.is_src else type(broadcaster).__name__
                self._digests.finish(load, copied_by=receiver)

        return around(self._say, "attach/broadcast", original, before, after)

    def received(self, original: Function) -> Function:
        """Wrap ``_bcast_layer``: the rows of one tensor have arrived on every rank."""
        names = ("buf_list", "target", "layer_id")
        tensors_of, rows_of, layer_of = (argument(original, name) for name in names)

        def before(*call: Any) -> Any:
            load = self._inside.load
            return (load, call) if load is not None and load.layers else None

        def after(about: Any, _: Any, error: BaseException | None) -> None:
            load, call = about
            if error is not None:
                return
            device, tensors, layer = call[0][0].device_pool, tensors_of(*call), int(layer_of(*call))
            latent = tensors is device.kv_buffer
            arrival = Arrival(
                component=_component(device, tensors, load, layer),
                layer=layer,
                tensor=tensors[layer],
                rows=rows_of(*call),
                page=max(1, int(getattr(device, "page_size", 1))) if latent else 1,
            )
            self._digests.arrived(load, arrival)

        return around(self._say, "attach/broadcast", original, before, after)


def _component(device: Any, tensors: Any, load: Load, layer: int) -> str:
    """Return the name of a broadcast tensor's component, the same on all ranks."""
    if tensors is device.kv_buffer and hasattr(device, "page_size"):
        return "latent"
    if tensors is getattr(device, "index_k_with_scale_buffer", None):
        return "index_k"
    return f"part{sum(layer in layers for layers in load.arrived.values())}"
