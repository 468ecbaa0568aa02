"""Digest layers that ranks receive by broadcast, on every rank, when they have arrived.

There are two cases: ranks that keep a single copy of a latent pool among them, and ranks that
divide a pool's layers. All ranks make the same broadcasts in the same order, so a load's number and
a page's position in it identify the same tile everywhere. Differences are found when the recordings
of the ranks are joined.
"""

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch

from hicache_dbg.tracer.attach.notes import Notes
from hicache_dbg.tracer.attach.sglang.arguments import argument
from hicache_dbg.tracer.attach.sglang.around import around
from hicache_dbg.tracer.attach.sglang.broadcast_loads import POOL, Load, copied, state
from hicache_dbg.tracer.attach.sglang.classes import ours
from hicache_dbg.tracer.attach.sglang.late_desk import LateDesk
from hicache_dbg.tracer.attach.sglang.late_indices import LateIndices
from hicache_dbg.tracer.attach.sglang.say import Say
from hicache_dbg.tracer.attach.sglang.tensors import End, of_pages, of_rows
from hicache_dbg.tracer.checks.violation import Violation
from hicache_dbg.tracer.digest.torch_digester import TorchDigester
from hicache_dbg.tracer.events import Op
from hicache_dbg.tracer.settings import Checksum
from hicache_dbg.tracer.view import View

__all__ = ["DEDUPLICATED", "SHARED_OUT", "Broadcasts"]

Function = Callable[..., Any]

_MEM = "sglang.srt.mem_cache"
#: Module and class through which ranks without a copy of a latent pool take part in a load.
DEDUPLICATED = (f"{_MEM}.mla_host_dedup", "MLAHostDedupBroadcaster")
#: Module, class and method through which ranks receive layers owned by another rank.
SHARED_OUT = (
    f"{_MEM}.dsa_cache_layer_split",
    "LayerSplitDSATokenToKVPool",
    "_broadcast_tensor_from_owner",
)
#: Most bytes of one tensor to digest (its first pages): digesting temporarily needs several times as
#: much memory.
MOST_BYTES = 16 << 20
#: Most loads of one broadcaster in flight at once.
_UNDER_WAY = 8


class _Inside(threading.local):
    load: Load | None = None


class Broadcasts:
    """Follows the broadcasts of this process.

    Args:
        say: gives access to the session and receives statements.
        indices: keeps digests that are still being computed.
    """

    def __init__(self, say: Say, indices: LateIndices) -> None:
        self._say = say
        self._indices = indices
        self._notes: Notes | None = None
        self._inside = _Inside()
        self._made: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._prepared: WeakKeyDictionary[Any, OrderedDict[int, tuple[Any, Load]]] = (
            WeakKeyDictionary()
        )
        self._shared: WeakKeyDictionary[Any, Load] = WeakKeyDictionary()

    # -- ranks that keep a single copy among them -------------------------------------------------

    def preparing(self, original: Function) -> Function:
        """Wrap ``prepare_broadcast``: a load to all ranks begins."""

        def before(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
            if self._inside.load is not None or not self._say.on():
                return None
            self._inside.load = load = Load("", 0)
            return args[0], load

        def after(about: Any, prepared: Any, error: BaseException | None) -> None:
            broadcaster, load = about
            self._inside.load = None
            if error is not None:
                return
            load.layers = int(broadcaster.layer_num)
            load.name = f"broadcast {self._number(broadcaster)}"
            under_way = self._prepared.setdefault(broadcaster, OrderedDict())
            under_way[id(prepared)] = prepared, load
            while len(under_way) > _UNDER_WAY:
                under_way.popitem(last=False)

        return around(self._say, "attach/broadcast", original, before, after)

    def arriving(self, original: Function) -> Function:
        """Wrap ``broadcast_loaded_layer``: one layer of a load, with all its tensors."""
        prepared_of, layer_of = argument(original, "prepared"), argument(original, "layer_id")

        def before(*given: Any) -> Any:
            prepared, broadcaster = prepared_of(*given), given[0][0]
            known = self._prepared.get(broadcaster)
            found = known.get(id(prepared)) if known is not None else None
            if found is None or found[0] is not prepared or self._inside.load is not None:
                return None
            self._inside.load = load = found[1]
            return broadcaster, prepared, load, layer_of(*given)

        def after(about: Any, _: Any, error: BaseException | None) -> None:
            broadcaster, prepared, load, layer = about
            self._inside.load = None
            if error is None and layer == load.layers - 1:
                self._prepared[broadcaster].pop(id(prepared), None)
                self._over(load, None if broadcaster.is_src else type(broadcaster).__name__)

        return around(self._say, "attach/broadcast", original, before, after)

    def received(self, original: Function) -> Function:
        """Wrap ``_bcast_layer``: the rows of one tensor have arrived on every rank."""
        names = ("buf_list", "target", "layer_id")
        tensors_of, rows_of, layer_of = (argument(original, name) for name in names)

        def before(*given: Any) -> Any:
            load = self._inside.load
            return (load, given) if load is not None and load.layers else None

        def after(about: Any, _: Any, error: BaseException | None) -> None:
            load, given = about
            if error is not None:
                return
            tensors, layer = tensors_of(*given), int(layer_of(*given))
            device, rows, page = given[0][0].device_pool, rows_of(*given), 1
            if tensors is device.kv_buffer:
                page = max(1, int(getattr(device, "page_size", 1)))
            component = _name(device, tensors, load, layer)
            self._digest(load, component, layer, tensors[layer], rows, page)

        return around(self._say, "attach/broadcast", original, before, after)

    # -- ranks that divide the layers -------------------------------------------------------------

    def loading(self, original: Function) -> Function:
        """Wrap a controller's ``start_loading``: which pages a load brings, layer by layer."""

        def before(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
            pool = getattr(args[0], "mem_pool_device", None)
            if not getattr(pool, "layer_shard_enabled", False) or not self._say.on():
                return None
            return pool, [one.device_indices for one in args[0].load_queue]

        def after(about: Any, _: Any, error: BaseException | None) -> None:
            pool, indices = about
            if error is None and indices:
                self._loaded(pool, indices)

        looked_at = around(self._say, "attach/broadcast", original, before, after)

        @wraps(original)
        def start_loading(*args: Any, **kwargs: Any) -> Any:
            if SHARED_OUT[0] not in sys.modules:  # no pool of this process divides its layers
                return original(*args, **kwargs)
            return looked_at(*args, **kwargs)

        return ours(start_loading)

    def _loaded(self, device_pool: Any, indices: Sequence[torch.Tensor]) -> None:
        before = self._shared.get(device_pool)
        if before is not None:
            self._over(before)
        name = f"load {self._number(device_pool)}"
        self._shared[device_pool] = Load(name, int(device_pool.layer_num), torch.cat(list(indices)))

    def shared(self, original: Function) -> Function:
        """Wrap the owner's broadcast of one layer's tensor, and digest the load's pages in it."""
        tensor_of, layer_of = argument(original, "tensor"), argument(original, "layer_id")

        def before(*given: Any) -> Any:
            load = self._shared.get(given[0][0]) if self._shared else None
            return (load, given) if load is not None and load.indices is not None else None

        def after(about: Any, _: Any, error: BaseException | None) -> None:
            load, given = about
            if error is None:
                pool, tensor = given[0][0], tensor_of(*given)
                layer = int(layer_of(*given)) - int(pool.start_layer)
                latent = tensor is getattr(pool, "remote_kv_buffer", None)
                self._share(load, pool, tensor, layer, latent=latent)

        return around(self._say, "attach/broadcast", original, before, after)

    def _share(self, load: Load, pool: Any, tensor: Any, layer: int, *, latent: bool) -> None:
        component, page = ("latent" if latent else "index_k"), int(pool.page_size)
        if layer in load.came.get(component, ()) or load.indices is None:
            return
        rows = load.indices if latent else load.indices[::page] // page
        self._digest(load, component, layer, tensor, rows, page if latent else 1)
        if len(load.came.get(component, ())) == load.layers:
            self._over(load, component=component)

    # -- both -------------------------------------------------------------------------------------

    def _number(self, of: Any) -> int:
        self._made[of] = number = self._made.get(of, 0) + 1
        return number

    def _digest(  # noqa: PLR0917
        self, load: Load, component: str, layer: int, tensor: torch.Tensor, rows: Any, page: int
    ) -> None:
        session = self._say.session()
        if session is None or not session.settings.traces(POOL) or not rows.numel():
            return
        if page > 1 and rows.numel() % page:
            page = 1
        view = _view(component, tensor, page)
        load.came.setdefault(component, []).append(layer)
        load.pages, load.dtype = rows.numel() // page, view.dtype
        load.stated = min(load.pages, max(1, MOST_BYTES // view.page_span))
        load.bytes += load.pages * view.page_span
        if session.settings.checksum is Checksum.OFF or _capturing(tensor):
            return
        pages = rows[::page][: load.stated].contiguous()
        out = torch.empty(1, len(pages), dtype=torch.int64, device=tensor.device)
        TorchDigester(tensor.device).digest(view, [0], pages.to(tensor.device), out=out, unit=page)
        kept = self._indices.keep(out)
        if kept is not None:
            load.digests[component, layer] = kept

    def _over(self, load: Load, received_by: str | None = None, component: str = "") -> None:
        """State what arrived, in order; once the last digest is complete, so are the others."""
        session = self._say.session()
        if session is None or not load.came:
            return
        if self._notes is None:
            self._notes = Notes(LateDesk(session, self._indices, self._say), lambda: None)
        parts = [component] if component else list(load.came)
        layers = {part: load.came[part] for part in parts}
        kept = {key: load.digests.pop(key) for key in list(load.digests) if key[0] in parts}

        def turn() -> list[Violation]:
            for part in parts:
                state(session, load, part, layers[part], kept)
            if received_by is not None:
                session.bus.publish(copied(session, load, received_by, len(kept)))
            return []

        last = list(kept.values())[-1] if kept else None
        self._notes.take(turn, POOL, Op.LOAD.value, about=last)


def _name(device: Any, tensors: Any, load: Load, layer: int) -> str:
    """Return the name of a broadcast tensor's component, the same on all ranks."""
    if tensors is device.kv_buffer and hasattr(device, "page_size"):
        return "latent"
    if tensors is getattr(device, "index_k_with_scale_buffer", None):
        return "index_k"
    return f"part{sum(layer in came for came in load.came.values())}"


def _view(component: str, tensor: torch.Tensor, page: int) -> View:
    end = End(POOL, component, "device", "layer_first")
    return of_rows(end, [tensor], page) if page > 1 else of_pages(end, [tensor], 1)


def _capturing(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
