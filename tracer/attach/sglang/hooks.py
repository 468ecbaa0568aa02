"""Which wrapper goes around which of SGLang's methods, module by module as they are imported."""

import logging
import sys
import threading
from collections.abc import Callable
from functools import partial, wraps
from types import ModuleType
from typing import Any

from hicache_dbg.tracer.attach.patch import Patches
from hicache_dbg.tracer.attach.sglang import versions
from hicache_dbg.tracer.attach.sglang.allocators import ALLOCATORS, CHECKED, HOST, STRIPED, Methods
from hicache_dbg.tracer.attach.sglang.asked import FOR_REQUESTS, QUEUES, Asked
from hicache_dbg.tracer.attach.sglang.broadcasts import DEDUPLICATED, SHARED_OUT, Broadcasts
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
from hicache_dbg.tracer.attach.sglang.envelopes import BACKING, allocating
from hicache_dbg.tracer.attach.sglang.fitting import unfit
from hicache_dbg.tracer.attach.sglang.gates import READERS
from hicache_dbg.tracer.attach.sglang.idle import Idle
from hicache_dbg.tracer.attach.sglang.kinds import LOAD, methods_of
from hicache_dbg.tracer.attach.sglang.lookups import BATCH, Lookups
from hicache_dbg.tracer.attach.sglang.observer import Observer
from hicache_dbg.tracer.attach.sglang.storage import OF_BACKENDS, OF_CONTROLLERS
from hicache_dbg.tracer.attach.sglang.transfers import BASES, MODULES, manager_classes
from hicache_dbg.tracer.attach.sglang.wrappers import Wrappers
from hicache_dbg.tracer.events import Op

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
        self.asked = Asked(observer.say)
        self.lookups = Lookups(observer.say)
        self.idle = Idle(lambda: observer.session() is not None, version)
        self.broadcasts = Broadcasts(observer.say, observer.owners.indices)
        self.operations = [op for op in versions.OPERATIONS if version in op.versions]
        #: Methods whose form is not the one that our wrappers expect.
        self.refused: set[str] = set()
        self._wrap = Wrappers(observer)
        self._pools: set[type] = set()
        self._lock = threading.RLock()  # modules are imported on any thread
        observer.storage.whom = self.asked.of_storage

    def modules(self) -> tuple[str, ...]:
        """Return every module in which something is wrapped."""
        return (
            *versions.POOL_MODULES,
            *versions.DEVICE_MODULES,
            *versions.ALLOCATOR_MODULES,
            *versions.STORAGE_MODULES,
            *versions.TREE_MODULES,
            *MODULES,
            *(place[0] for place in (COLLECTOR, BATCH, STRIPED, DEDUPLICATED, SHARED_OUT)),
            *(operation.module for operation in self.operations),
        )

    def wrap(self, module: ModuleType) -> None:
        """Wrap what a module has; a step that fails does not keep the others from running."""
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
            (BATCH, partial(_both, self.idle.batching, self.lookups.batching)),
            (SHARED_OUT, self.broadcasts.shared),
        ):
            self._wrap_one(module, place, make)

    def _wrap_operations(self, module: ModuleType) -> None:
        for operation in self.operations:
            owner = vars(module).get(operation.cls)
            if operation.module == module.__name__ and isinstance(owner, type):
                self._own(owner, operation.method, self._operating(operation.method))
                self._own(owner, "__init__", self._wrap.ownership)

    def wrap_pools(self, _: ModuleType | None = None) -> None:
        """Wrap every host pool class that exists: a subclass may live in a module we do not know."""
        for cls in host_pool_classes():
            self._pools.add(cls)
            self._own(cls, "__init__", self._building)
            if cls.__name__ not in CHECKED:
                self._wrap_allocator(cls, HOST)
            if cls.__name__ in {BASE, ANCHOR}:
                continue  # abstract, or without bytes
            for method in methods_of(cls.__name__):
                make = self._wrap.load if method.startswith(LOAD) else self._wrap.backup
                self._own(cls, method, partial(make, method=method, cls=cls))

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
                self._own(cls, name, make)

    def _wrap_readers(self, _: ModuleType) -> None:
        gates = self.observer.gates
        for cls in device_pool_classes():
            self._own(cls, "register_layer_transfer_counter", gates.gating)
            for name in READERS & vars(cls).keys():
                self._own(cls, name, partial(gates.reading, name=name))

    def _wrap_gates(self, module: ModuleType) -> None:
        gates = self.observer.gates
        for name, method, make in (
            ("LayerDoneCounter", "update_producer", gates.production),
            ("LayerDoneCounter", "wait_until", gates.waiting),
            ("LayerLoadingEvent", "complete", gates.completion),
        ):
            self._wrap_one(module, (versions.GATES_MODULE, name, method), make)

    def _wrap_storage(self, module: ModuleType) -> None:
        storage = self.observer.storage
        for name in ("HiCacheController", "HybridCacheController"):
            cls = vars(module).get(name)
            if isinstance(cls, type) and cls.__module__ == module.__name__:
                self._wrap_queues(cls)
                self._own(cls, "_page_backup", storage.backing_up)
                for method, op in OF_CONTROLLERS.items():
                    make = storage.setting if op is Op.STORE else storage.getting
                    self._own(cls, method, make)
        backend = vars(module).get("HiCacheStorage")
        if isinstance(backend, type) and backend.__module__ == module.__name__:
            self._own(backend, "register_mem_host_pool_v2", self._registering)
            self._wrap_backends(backend)

    def _wrap_backends(self, base: type) -> None:
        """Wrap every storage backend that exists; later ones are wrapped when they are given a pool."""
        for cls in subclasses([base]):
            for method, op in OF_BACKENDS.items():
                self._own(cls, method, partial(self.observer.storage.batching, op=op))

    def _operating(self, method: str) -> Callable[[Any], Any]:
        """Return what wraps a method that is one operation."""
        return partial(_both, self._queue(method), self._wrap.operation)

    def _queue(self, method: str) -> Callable[[Any], Any]:
        """Return what wraps a method that processes a queue.

        It notes the requests served and, for loads, what other ranks get by broadcast.
        """
        if method not in QUEUES:
            return lambda original: original
        carrying = partial(self.asked.carrying, queue=QUEUES[method])
        if method == "start_writing":
            return carrying
        return partial(_both, self.broadcasts.loading, carrying)

    def _wrap_queues(self, controller: type) -> None:
        for method in ("write", "load"):
            self._own(controller, method, self.asked.queueing)
        operations = {str(one) for one in self.operations}
        for method in QUEUES:
            if f"{controller.__name__}.{method}" not in operations:
                self._own(controller, method, self._queue(method))
        self._own(controller, "write_storage", self.asked.sending)

    def _wrap_broadcasts(self, _: ModuleType) -> None:
        broadcasts, (home, name) = self.broadcasts, DEDUPLICATED
        base = getattr(sys.modules.get(home), name, None)
        for cls in subclasses([base] if isinstance(base, type) else []):
            self._own(cls, "prepare_broadcast", broadcasts.preparing)
            self._own(cls, "broadcast_loaded_layer", broadcasts.arriving)
            self._own(cls, "_bcast_layer", broadcasts.received)

    def _wrap_trees(self, _: ModuleType) -> None:
        """Wrap every tree class that exists."""
        asked, lookups = self.asked.asking, self.lookups
        counted = {"match_prefix": lookups.matching, "init_load_back": lookups.loading}
        for cls in tree_classes():
            for name in FOR_REQUESTS & vars(cls).keys():
                inner = counted.get(name)
                self._own(cls, name, asked if inner is None else partial(_both, asked, inner))
            self._own(cls, "write_backup_storage", self.asked.storing)

    def _registering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def register_mem_host_pool_v2(backend: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(backend, *args, **kwargs)
            with self.observer.say.errors("attach/backend"):
                if self.observer.on:
                    for cls in type(backend).__mro__[:-1]:
                        self._wrap_backends(cls)
            return result

        return ours(register_mem_host_pool_v2)

    def _wrap_transfers(self, module: ModuleType) -> None:
        if module.__name__ not in MODULES:
            return
        transfers, owned = self.observer.transfers, vars(sys.modules[MODULES[0]])
        _, *ends = (owned[name] for name in BASES if name in owned)
        for cls in manager_classes():
            self._own(cls, "__init__", transfers.managing)
        follow = self._wrap_end
        for cls in subclasses(ends):
            if cls not in ends:
                self._own(cls, "__init__", partial(transfers.beginning, follow=follow))
        info = vars(module).get("KVArgsRegisterInfo")
        if isinstance(info, type):
            self._own(info, "from_zmq", transfers.registering)

    def _wrap_one(
        self, module: ModuleType, place: tuple[str, str, str], make: Callable[[Any], Any]
    ) -> None:
        """Wrap one method, given by its module, class and name."""
        home, name, method = place
        cls = vars(module).get(name)
        if module.__name__ == home and isinstance(cls, type):
            self._own(cls, method, make)

    def _wrap_end(self, cls: type) -> None:
        """Wrap what a sender or receiver class and its bases define themselves."""
        transfers = self.observer.transfers
        for base in cls.__mro__:
            self._own(base, "send", transfers.sending)
            self._own(base, "send_metadata", transfers.asking)
            self._own(base, "poll", transfers.polling)

    def _wrap_group(self, module: ModuleType) -> None:
        group = vars(module).get(GROUP)
        if isinstance(group, type):
            self._own(group, "__init__", self._wrap.grouping)
            self._own(group, "add_entry", self._wrap.grouping)

    def _own(self, cls: type, name: str, make: Callable[[Any], Any]) -> None:
        """Wrap a method that the class itself defines, if it has the form that the wrapper expects."""
        if name not in vars(cls):
            return
        why = unfit(name, vars(cls)[name])
        if not why:
            self.patches.replace(cls, name, make)
            return
        self.refused.add(f"{cls.__name__}.{name}")
        self.observer.registry.inventory.not_recognised(f"{cls.__name__}.{name}: {why}")


def _both(outer: Callable[[Any], Any], inner: Callable[[Any], Any], original: Any) -> Any:
    return outer(inner(original))
