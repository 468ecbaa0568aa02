"""Which wrapper goes around which of SGLang's methods, module by module as they are imported."""

import logging
import sys
import threading
from collections.abc import Callable
from functools import partial, wraps
from inspect import getattr_static
from types import ModuleType
from typing import Any

from hicache_dbg.tracer.attach.patch import Patches
from hicache_dbg.tracer.attach.sglang import versions
from hicache_dbg.tracer.attach.sglang.allocators import ALLOCATORS, CHECKED, HOST, STRIPED, Methods
from hicache_dbg.tracer.attach.sglang.broadcast_digests import BroadcastDigests
from hicache_dbg.tracer.attach.sglang.classes import (
    ANCHOR,
    BASE,
    GROUP,
    device_pool_classes,
    host_pool_classes,
    ours,
    subclasses,
    tree_classes,
)
from hicache_dbg.tracer.attach.sglang.counters import COLLECTOR
from hicache_dbg.tracer.attach.sglang.dedup_broadcasts import BROADCASTER, DedupBroadcasts
from hicache_dbg.tracer.attach.sglang.envelopes import BACKING, allocating
from hicache_dbg.tracer.attach.sglang.fitting import unfit
from hicache_dbg.tracer.attach.sglang.gates import READERS
from hicache_dbg.tracer.attach.sglang.idle import Idle
from hicache_dbg.tracer.attach.sglang.kinds import LOAD, methods_of
from hicache_dbg.tracer.attach.sglang.layer_split_broadcasts import (
    OWNER_BROADCAST,
    LayerSplitBroadcasts,
)
from hicache_dbg.tracer.attach.sglang.lookups import BATCH, Lookups
from hicache_dbg.tracer.attach.sglang.method_patches import MethodPatches, nested
from hicache_dbg.tracer.attach.sglang.observer import Observer
from hicache_dbg.tracer.attach.sglang.request_tracking import (
    QUEUES,
    TREE_METHODS,
    RequestTracker,
)
from hicache_dbg.tracer.attach.sglang.storage_hooks import StorageHooks
from hicache_dbg.tracer.attach.sglang.transfer_hooks import wrap_transfers
from hicache_dbg.tracer.attach.sglang.transfers import MODULES
from hicache_dbg.tracer.attach.sglang.wrappers import Wrappers

__all__ = ["Hooks"]

_log = logging.getLogger("hicache_dbg")


class Hooks:
    """Wraps the methods of each module, once each, and reports what it cannot wrap.

    Args:
        observer: What the wrappers report to.
        version: The version of SGLang.
    """

    def __init__(self, observer: Observer, version: str) -> None:
        self.observer = observer
        self.patches = Patches()
        self.requests = RequestTracker(observer.say)
        self.lookups = Lookups(observer.say)
        self.idle = Idle(lambda: observer.session() is not None, version)
        self.broadcasts = BroadcastDigests(observer.say, observer.owners.indices)
        self.dedup = DedupBroadcasts(self.broadcasts)
        self.layer_split = LayerSplitBroadcasts(self.broadcasts)
        self.operations = [op for op in versions.OPERATIONS if version in op.versions]
        self.methods = MethodPatches(self.patches, observer.registry.inventory)
        self._storage = StorageHooks(self.methods, observer)
        self._wrap = Wrappers(observer)
        self._pools: set[type] = set()
        self._lock = threading.RLock()  # modules are imported on any thread
        observer.storage.whom = self.requests.of_storage

    def modules(self) -> tuple[str, ...]:
        """Return every module in which something is wrapped."""
        return (
            *versions.POOL_MODULES,
            *versions.DEVICE_MODULES,
            *versions.ALLOCATOR_MODULES,
            *versions.STORAGE_MODULES,
            *versions.TREE_MODULES,
            *MODULES,
            *(place[0] for place in (COLLECTOR, BATCH, STRIPED, BROADCASTER, OWNER_BROADCAST)),
            *(operation.module for operation in self.operations),
        )

    def wrap(self, module: ModuleType) -> None:
        """Wrap what a module defines; a step that fails does not keep the others from running."""
        for step in (
            self.wrap_pools,
            self._wrap_readers,
            self._wrap_gates,
            self._wrap_allocators,
            self._wrap_storage,
            self._wrap_transfers,
            self._wrap_single,
            self._wrap_trees,
            self._wrap_broadcasts,
            self._wrap_group,
            self._wrap_operations,
        ):
            try:
                with self._lock:
                    step(module)
            except Exception as error:  # noqa: BLE001 - an import of SGLang's never fails because of us
                name = f"{module.__name__}: {type(error).__name__}: {error}"
                self.observer.registry.inventory.not_recognised(name)
                _log.warning("hicache-dbg cannot attach to %s", name)

    def _wrap_single(self, module: ModuleType) -> None:
        for place, make in (
            (COLLECTOR, self.observer.bytes.counting),
            (BACKING, partial(allocating, say=self.observer.say)),
            (STRIPED, self.observer.owners.striping),
            (BATCH, partial(nested, self.idle.batching, self.lookups.batching)),
            (OWNER_BROADCAST, self.layer_split.shared),
        ):
            self.methods.at(module, place, make)

    def _wrap_operations(self, module: ModuleType) -> None:
        for operation in self.operations:
            owner = vars(module).get(operation.cls)
            if operation.module == module.__name__ and isinstance(owner, type):
                self.methods.own(owner, operation.method, self._operating(operation.method))
                self.methods.own(owner, "__init__", self._wrap.ownership)

    def wrap_pools(self, _: ModuleType | None = None) -> None:
        """Wrap every host pool class that exists: a subclass may live in a module we do not know."""
        for cls in host_pool_classes():
            self._pools.add(cls)
            self.methods.own(cls, "__init__", self._building)
            if cls.__name__ not in CHECKED:
                self._wrap_allocator(cls, HOST)
            if cls.__name__ in {BASE, ANCHOR}:
                continue  # abstract, or without bytes
            for method in methods_of(cls.__name__):
                make = self._wrap.load if method.startswith(LOAD) else self._wrap.backup
                self.methods.own(cls, method, partial(make, method=method, cls=cls))

    def _building(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``__init__`` of a host pool, and any new class before its first call."""
        build = self._wrap.construction(original)

        @wraps(original)
        def __init__(pool: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            if type(pool) not in self._pools and self.observer.on:
                with self.observer.say.errors("attach/class"):
                    self.wrap_pools()
            build(pool, *args, **kwargs)

        return ours(__init__)

    def _wrap_allocators(self, module: ModuleType) -> None:
        for name, methods in ALLOCATORS.items():
            cls = vars(module).get(name)
            if isinstance(cls, type) and cls.__module__ == module.__name__:
                self._wrap_allocator(cls, methods)

    def _wrap_allocator(self, cls: type, methods: Methods) -> None:
        owners = self.observer.owners
        for names, make in (
            (methods.gives, owners.giving),
            (methods.takes, owners.taking),
            (methods.takes_pages, partial(owners.taking, pages=True)),
            (methods.deferred, owners.deferring),
            (methods.resets, owners.resetting),
        ):
            for name in names:
                self.methods.own(cls, name, make)

    def _wrap_readers(self, _: ModuleType) -> None:
        gates = self.observer.gates
        for cls in device_pool_classes():
            self.methods.own(cls, "register_layer_transfer_counter", gates.gating)
            for name in READERS & vars(cls).keys():
                self.methods.own(cls, name, partial(gates.reading, name=name))

    def _wrap_gates(self, module: ModuleType) -> None:
        for method, make in (
            ("update_producer", self._producing),
            ("wait_until", self.observer.gates.waiting),
        ):
            self.methods.at(module, (versions.GATES_MODULE, "LayerDoneCounter", method), make)
        if module.__name__ == versions.GATES_MODULE:
            self._learn_complete(vars(module).get("LayerLoadingEvent"))

    def _learn_complete(self, events: type | None) -> None:
        """Learn the form of ``complete``; a load that needs it wraps it, on its own events."""
        found = getattr_static(events, "complete", None)
        reason = "missing" if found is None else unfit("complete", found)
        if found is not None and not reason:
            self.observer.gates.completes(found)
        else:
            self.observer.registry.inventory.not_recognised(f"LayerLoadingEvent.complete: {reason}")

    def _producing(self, original: Any) -> Any:
        """Wrap ``update_producer``."""
        python, helper = self.observer.gates.production(original), self.observer.calls.helper
        return python if helper is None else helper.production(original, python)

    def _wrap_storage(self, module: ModuleType) -> None:
        for name in ("HiCacheController", "HybridCacheController"):
            cls = vars(module).get(name)
            if isinstance(cls, type) and cls.__module__ == module.__name__:
                self._wrap_queues(cls)
                self._storage.wrap_controller(cls)
        self._storage.wrap_backends(module)

    def _wrap_transfers(self, module: ModuleType) -> None:
        wrap_transfers(module, self.methods, self.observer.transfers)

    def _operating(self, method: str) -> Callable[[Any], Any]:
        """Return what wraps a method that is one operation."""
        return partial(nested, self._queue(method), self._wrap.operation)

    def _queue(self, method: str) -> Callable[[Any], Any]:
        """Return what wraps a method that processes a queue.

        It notes the requests served and, for loads, what other ranks get by broadcast.
        """
        if method not in QUEUES:
            return lambda original: original
        queue, helper = QUEUES[method], self.observer.calls.helper

        def processing(original: Any) -> Any:
            python = self.requests.carrying(original, queue=queue)
            if method != "start_writing":
                python = self.layer_split.loading(python)
            if helper is None:
                return python
            return helper.processing(original, python, queue, self.requests.nodes)

        return processing

    def _wrap_queues(self, controller: type) -> None:
        for method in ("write", "load"):
            self.methods.own(controller, method, self.requests.queueing)
        operations = {str(operation) for operation in self.operations}
        for method in QUEUES:
            if f"{controller.__name__}.{method}" not in operations:
                self.methods.own(controller, method, self._queue(method))
        self.methods.own(controller, "write_storage", self.requests.sending)

    def _wrap_broadcasts(self, _: ModuleType) -> None:
        home, name = BROADCASTER
        base = getattr(sys.modules.get(home), name, None)
        for cls in subclasses([base] if isinstance(base, type) else []):
            self.methods.own(cls, "prepare_broadcast", self.dedup.preparing)
            self.methods.own(cls, "broadcast_loaded_layer", self.dedup.arriving)
            self.methods.own(cls, "_bcast_layer", self.dedup.received)

    def _wrap_trees(self, _: ModuleType) -> None:
        """Wrap every tree class that exists."""
        asking, lookups = self.requests.asking, self.lookups
        counted = {"match_prefix": lookups.matching, "init_load_back": lookups.loading}
        for cls in tree_classes():
            for name in TREE_METHODS & vars(cls).keys():
                inner = counted.get(name)
                self.methods.own(
                    cls, name, asking if inner is None else partial(nested, asking, inner)
                )
            self.methods.own(cls, "write_backup_storage", self.requests.storing)

    def _wrap_group(self, module: ModuleType) -> None:
        group = vars(module).get(GROUP)
        if isinstance(group, type):
            self.methods.own(group, "__init__", self._wrap.grouping)
            self.methods.own(group, "add_entry", self._wrap.grouping)
