"""SGLang's layer gates: who waits for which load's layer, and who reads without waiting.

``LayerDoneCounter`` has a few sets of events, one per load. ``update_producer`` begins a load in
the next set, ``complete`` records a layer's event behind its copies, and ``wait_until`` makes the
batch's stream wait for a layer of the set assigned to the batch. Accessors of device pools that
call ``wait_until`` are gated; some do not call it.

``complete`` is called once per layer, and stays SGLang's own: the variable of the loop that submits a load says
how far it is. Only a load of a function whose loop is unknown gets a ``complete`` of ours, on its events.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import wraps
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, finalize

import numpy as np
import torch
from torch.compiler import is_compiling

from hicache_dbg.tracer.attach.call_site import access
from hicache_dbg.tracer.attach.sglang.arguments import Argument, argument
from hicache_dbg.tracer.attach.sglang.around import around
from hicache_dbg.tracer.attach.sglang.classes import ours
from hicache_dbg.tracer.attach.sglang.inner_pools import inner_layers
from hicache_dbg.tracer.attach.sglang.say import Say
from hicache_dbg.tracer.attach.sglang.versions import layers_sent
from hicache_dbg.tracer.checks.gates import Loading
from hicache_dbg.tracer.checks.violation import Access
from hicache_dbg.tracer.ledger import Pages

__all__ = ["LOOPS", "NO_PAGES", "READERS", "Gates"]

Function = Callable[..., Any]

#: Accessors that read a layer of a device pool, gated or not; the layer is their first argument.
#: ``get_swa_raw_buffer`` is not one: SGLang uses it to write new tokens.
READERS: frozenset[str] = frozenset(
    {
        *("get_key_buffer", "get_value_buffer", "get_kv_buffer", "get_raw_kv_buffer"),
        *("_get_key_buffer", "_get_value_buffer", "get_kv_scale_buffer", "get_scale_buffer"),
        *("get_k_scale_buffer", "get_v_scale_buffer", "get_index_k_buffer", "get_index_kv_buffer"),
        *("get_index_k_with_scale_buffer", "get_index_k_scale_buffer", "get_extra_key_buffer"),
        *("get_swa_key_buffer", "get_swa_key_buffer_radix", "mamba2_layer_cache"),
        *("get_index_k_fp4_payload_buffer", "get_index_k_fp4_scale_buffer", "get_index_k_fp4"),
        *("get_low_ratio_index_k_dequant", "get_low_ratio_index_k_fp4", "get_index_k_dequant"),
        *("get_attention_compress_states", "get_indexer_compress_states"),
    }
)


#: The pages a load writes, while they are unknown.
NO_PAGES: Pages = np.zeros(0, np.int64)

#: SGLang's functions that submit a load layer by layer, and the name of their loop variable.
LOOPS = {"start_loading": "i", "submit_host_to_device": "layer_id"}


class _Here(threading.local):
    """Per thread: ``loading`` is the load whose layers this thread is submitting.

    ``sites`` are for the compiled helper: where the last load of each set began, and from which frames.
    """

    def __init__(self) -> None:
        self.loading: Loading | None = None
        self.sites: dict[int, tuple[tuple[Any, ...], Access]] = {}


class Gates:
    """Follows the loads of every counter in this process, and checks that readers waited.

    Checking a reader costs nothing while no load is in flight. A wait by one thread counts for all
    streams that it works on.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        #: The load of each event set, by its identity.
        self.current: dict[int, Loading] = {}
        #: Loads by event set, while layers are still to come.
        self.on_way: dict[Any, Loading] = {}
        self._gates: WeakKeyDictionary[Any, tuple[Any, dict[int, int] | None]] = WeakKeyDictionary()
        #: State of the current thread.
        self.here = _Here()
        self._layer_of: Argument | None = None  # of ``complete``

    # -- wrappers -------------------------------------------------------------------------------

    def production(self, original: Function) -> Function:
        """Wrap ``LayerDoneCounter.update_producer``: a load begins."""

        @wraps(original)
        def update_producer(counter: Any, *args: Any, **kwargs: Any) -> Any:
            index = original(counter, *args, **kwargs)
            self.begins(counter, index, sys._getframe().f_back)  # noqa: SLF001
            return index

        return ours(update_producer)

    def begins(self, counter: Any, index: int, caller: FrameType | None) -> None:
        """Note that a load begins in a set of events; ``caller`` called ``update_producer``."""
        session = self._say.session()
        if session is None:
            return
        since = time.perf_counter()
        try:
            events = counter.events[index]
            loading = Loading(counter.num_layers, self.site(index))
            before = self.here.loading
            if before is not None and before.sender:  # nobody followed it to its end
                before.sent(before.layers)
            if caller is not None and caller.f_code.co_name in LOOPS:
                loading.sender = threading.get_ident()
            else:
                self._follow(loading, events)
            if id(events) not in self.current:
                finalize(events, self.current.pop, id(events), None)
            self.current[id(events)] = self.on_way[events] = self.here.loading = loading
        except Exception as error:  # noqa: BLE001 - our failure must not stop SGLang
            session.errors.record("attach/load begins", error)
        session.probe.overhead_s += time.perf_counter() - since

    def site(self, index: int) -> Access:
        """Return where on this thread a load begins in the set ``index``."""
        return access(f"load in set {index}")

    def completes(self, original: Function) -> None:
        """Learn how ``LayerLoadingEvent.complete`` is called, which says that a layer's gate is recorded."""
        self._layer_of = argument(original, "layer_index")

    def waiting(self, original: Function) -> Function:
        """Wrap ``LayerDoneCounter.wait_until``."""
        threshold_of = argument(original, "threshold")

        @wraps(original)
        def wait_until(counter: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(counter, *args, **kwargs)
            if self.on_way:
                with self._say.errors("attach/wait"):
                    self._waited(counter, threshold_of((counter, *args), kwargs))
            return result

        return ours(wait_until)

    def gating(self, original: Function) -> Function:
        """Wrap ``register_layer_transfer_counter``: which pool a counter gates."""
        counter_of = argument(original, "", at=1)

        def after(given: Any, _: Any, error: BaseException | None) -> None:
            if error is None:
                self._gate(given[0][0], counter_of(*given))

        return around(self._say, "attach/gates", original, lambda *given: given, after)

    def reading(self, original: Function, name: str) -> Function:
        """Wrap an accessor of a device pool: when it returns, the wait must have happened."""

        @wraps(original)
        def reader(pool: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(pool, *args, **kwargs)
            if is_compiling() or not self.on_way:
                return result
            with self._say.errors("attach/reader"):
                self._look(pool, name, args, kwargs)
            return result

        return ours(reader)

    # -- queries --------------------------------------------------------------------------------

    def adopt(self, pools: Iterable[Any]) -> None:
        """Take over device pools that got their counters before we attached; outer pools last."""
        for pool in sorted(pools, key=lambda pool: any(True for _ in inner_layers(pool))):
            with self._say.errors("attach/gates"):
                self._gate(pool, getattr(pool, "layer_transfer_counter", None))

    def sent(self, owner: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that this thread's load, a :data:`~.frames.Call`, has submitted all its layers."""
        here = self.here
        loading, here.loading = here.loading, None
        if loading is None or not loading.sender:
            return
        try:
            loading.sent(layers_sent(owner, method, args, kwargs))
        except Exception as error:  # noqa: BLE001 - SGLang goes on without us
            session = self._say.session()
            if session is not None:
                session.errors.record("attach/load ends", error)

    def moved(self, pool: str, pages: Pages) -> None:
        """Record the device pages that this thread's current load writes."""
        loading = self.here.loading
        if loading is not None:
            loading.moves(pool, pages)

    def read_pages(self, pool: str, pages: Pages, what: str) -> None:
        """Check a copy that reads these device pages in all layers."""
        if not self.on_way:
            return
        for loading in self._arriving():
            self._say.found(loading.touch({pool: pages}, access(what)), pool)

    def _waited(self, counter: Any, layer: int) -> None:
        if counter.consumer_index < 0:
            return
        loading = self.current.get(id(counter.events[counter.consumer_index]))
        if loading is not None:
            self._catch_up(loading)
            loading.wait(threading.get_ident(), layer)

    def _arriving(self) -> Iterable[Loading]:
        """Yield the loads whose last layer the device has not reported, and drop the others."""
        for events, loading in list(self.on_way.items()):
            self._catch_up(loading)
            if loading.opened >= loading.layers - 1 and events.finish_event.query():
                self.on_way.pop(events, None)
            else:
                yield loading

    def _follow(self, loading: Loading, events: Any) -> None:
        """Follow a load of which only ``complete`` says how far it is."""
        if self._layer_of is None:  # nobody knows: it accuses nobody
            loading.sent(loading.layers)
            return
        theirs = events.complete
        if isinstance(theirs, _Follower):  # of a load that never came to its last layer
            theirs = theirs.theirs
        events.complete = _Follower(self, loading, events, theirs, self._layer_of)

    def completed(self, follower: "_Follower", layer: int) -> None:
        """Note that a layer's gate is recorded; behind the last one, the follower goes."""
        with self._say.errors("attach/layer"):
            loading, events = follower.loading, follower.events
            if self._say.on() and self.current.get(id(events)) is loading:
                loading.open(layer)
            else:  # nobody follows it to its end
                loading.sent(loading.layers)
            if loading.opened >= loading.layers - 1:
                follower.take_off()
                if self.here.loading is loading:
                    self.here.loading = None

    def _catch_up(self, loading: Loading) -> None:
        """Update the progress of a load that another thread is submitting."""
        if loading.sender:
            layer = _layer_at(loading.sender)
            if layer is None:
                loading.sent(loading.layers)
            else:
                loading.open(layer - 1)

    def _gate(self, pool: Any, counter: Any) -> None:
        if hasattr(counter, "wait_until"):
            self._gates[pool] = counter, None
            for inner, layers in inner_layers(pool):
                self._gates[inner] = counter, layers

    def _look(self, pool: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        counter, layers = self._gates.get(
            pool, (getattr(pool, "layer_transfer_counter", None), None)
        )
        told = args[0] if args else kwargs.get("layer_id")
        if counter is None or not isinstance(told, int) or counter.consumer_index < 0:
            return  # no load was assigned to this batch
        layer = told - pool.start_layer if layers is None else layers.get(told, -1)
        events = counter.events[counter.consumer_index]
        loading = self.on_way.get(events)
        if loading is None or not 0 <= layer < loading.layers or _capturing():
            return
        self._catch_up(loading)
        if loading.opened >= layer and events.load_events[layer].query():
            next(iter(self._arriving()), None)
            return
        names = self._say.pools_over(pool) & set(loading.pages) or set(loading.pages)
        by = access(f"{type(pool).__name__}.{name} of layer {told}")
        for one in sorted(names) or [type(pool).__name__]:
            self._say.found(loading.read(threading.get_ident(), layer, one, by), one)


class _Follower:
    """Takes the place of ``theirs``, the method ``complete`` of a set of events, for one load.

    It stays callable when it has been taken off: somebody may have wrapped it.
    """

    __slots__ = ("_gates", "_layer_of", "events", "loading", "theirs")

    def __init__(
        self, gates: Gates, loading: Loading, events: Any, theirs: Function, layer_of: Argument
    ) -> None:
        self._gates, self.loading = gates, loading
        self.events, self.theirs, self._layer_of = events, theirs, layer_of

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.theirs(*args, **kwargs)
        self._gates.completed(self, self._layer_of((None, *args), kwargs))
        return result

    def take_off(self) -> None:
        """Put theirs back, unless somebody else's has taken our place."""
        events, theirs = self.events, self.theirs
        if events.complete is not self:
            return
        del events.complete
        if events.complete != theirs:  # it was not the class's
            events.complete = theirs


def _layer_at(thread: int) -> int | None:
    """Return the layer that a thread is submitting, read from its loop variable; None if it has ended."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - the documented way to other threads
    begun = False
    while frame is not None:
        variable = LOOPS.get(frame.f_code.co_name)
        if variable is not None:
            begun, layer = True, frame.f_locals.get(variable)
            if isinstance(layer, int):
                return layer
        frame = frame.f_back
    return 0 if begun else None


def _capturing() -> bool:
    """Return whether a CUDA graph is being captured, during which events must not be queried."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
