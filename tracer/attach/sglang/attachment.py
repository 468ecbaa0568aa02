"""Wraps SGLang's host pools, and the methods that are operations, as their modules are imported."""

import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial, wraps
from types import ModuleType
from typing import Any
from weakref import WeakMethod

import wrapt

from hicache_dbg.tracer.attach.patch import Patches
from hicache_dbg.tracer.attach.sglang import versions
from hicache_dbg.tracer.attach.sglang.allocators import ALLOCATORS, CHECKED, HOST, Methods
from hicache_dbg.tracer.attach.sglang.classes import (
    ANCHOR,
    BASE,
    GROUP,
    device_pool_classes,
    host_pool_classes,
    is_ours,
    ours,
    subclasses,
)
from hicache_dbg.tracer.attach.sglang.counters import COLLECTOR
from hicache_dbg.tracer.attach.sglang.envelopes import BACKING, allocating
from hicache_dbg.tracer.attach.sglang.gates import READERS
from hicache_dbg.tracer.attach.sglang.kinds import LOAD, known_classes, methods_of
from hicache_dbg.tracer.attach.sglang.observer import Observer
from hicache_dbg.tracer.attach.sglang.session import SglangSession
from hicache_dbg.tracer.attach.sglang.storage import OF_BACKENDS, OF_CONTROLLERS
from hicache_dbg.tracer.attach.sglang.transfers import BASES, MODULES, manager_classes
from hicache_dbg.tracer.attach.sglang.wrappers import Wrappers
from hicache_dbg.tracer.events import Op
from hicache_dbg.tracer.sink import PoolPages

__all__ = ["SglangAttachment"]

#: How long detaching waits for the host to come out of our wrappers, in seconds.
WITHIN_S = 0.5

_log = logging.getLogger("hicache_dbg")


class SglangAttachment:
    """Attaches to what this version of SGLang has.

    Nothing of ours runs until this process builds its first host pool: then ``start`` makes the
    session. ``attach`` and ``detach`` are a symmetric, idempotent pair; after ``detach`` SGLang's
    functions are the very same objects as before.
    """

    def __init__(self, version: str, start: Callable[[], SglangSession]) -> None:
        self.version = version
        self.observer = Observer(version, start, self._announce)
        self._patches = Patches()
        self._wrap = Wrappers(self.observer)
        self.attached = False
        self._hooked = False
        if not versions.supported(version):
            self.observer.registry.inventory.not_recognised(
                f"sglang {version}: written for {versions.OLDEST} to {versions.NEWEST}"
            )

    def attach(self) -> None:
        """Wrap what is imported, and what will be; calling it again is harmless."""
        if self.attached:
            return
        self.attached = self.observer.on = True
        self._wrap_all()

    def _wrap_all(self) -> None:
        modules = dict.fromkeys(
            (
                *versions.POOL_MODULES,
                *versions.DEVICE_MODULES,
                *versions.ALLOCATOR_MODULES,
                *versions.STORAGE_MODULES,
                *MODULES,
                COLLECTOR[0],
                versions.BROADCASTER[0],
                *(o.module for o in self._operations()),
            )
        )
        for name in modules:
            if not self._hooked:
                wrapt.register_post_import_hook(_weakly(self._imported), name)
            elif name in sys.modules:
                self._imported(sys.modules[name])
        self._hooked = True

    def detach(self) -> None:
        """Put SGLang's own functions back; a second call changes nothing.

        Operations that are under way end as they began, and are waited for a moment.
        """
        if self.observer.on:
            self.observer.bytes.tell()
        self.attached = self.observer.on = False
        self._patches.undo()
        self.observer.settle(WITHIN_S)

    def pool_state(self) -> Iterator[PoolPages]:
        """Host pages by pool and state; read when asked."""
        return self.observer.registry.pool_state()

    def host_classes(self) -> set[str]:
        """Every host pool class of this version, and any other that exists, built or not."""
        found = {cls.__name__ for cls in host_pool_classes()} | known_classes(self.version)
        return found - {BASE}

    def _operations(self) -> list[versions.Operation]:
        return [op for op in versions.OPERATIONS if self.version in op.versions]

    def _announce(self, session: SglangSession) -> None:
        inventory = self.observer.registry.inventory
        for operation in self._operations():
            module = sys.modules.get(operation.module)
            owner = getattr(module, operation.cls, None)
            if module is not None and not is_ours(getattr(owner, operation.method, None)):
                inventory.not_recognised(f"{operation}: not attached in sglang {self.version}")
        session.register(
            inventory.take(),
            host_classes=self.host_classes(),
            built=inventory.built,
            unrecognised=inventory.unrecognised,
        )

    def _imported(self, module: ModuleType) -> None:
        if not self.attached:
            return
        try:
            self._wrap_pools()
            self._wrap_readers()
            self._wrap_gates(module)
            self._wrap_allocators(module)
            self._wrap_storage(module)
            self._wrap_transfers(module)
            self._wrap_one(module, COLLECTOR, self.observer.bytes.counting)
            self._wrap_one(module, BACKING, allocating)
            self._wrap_one(module, versions.BROADCASTER, self._wrap.broadcast)
            self._wrap_group(vars(module).get(GROUP))
            for operation in self._operations():
                owner = vars(module).get(operation.cls)
                if operation.module == module.__name__ and isinstance(owner, type):
                    self._own(owner, operation.method, self._wrap.operation)
                    self._own(owner, "__init__", self._wrap.ownership)
        except Exception as error:  # noqa: BLE001 - an import of SGLang's never fails because of us
            name = f"{module.__name__}: {type(error).__name__}: {error}"
            self.observer.registry.inventory.not_recognised(name)
            _log.warning("hicache-dbg cannot attach to %s", name)

    def _wrap_pools(self) -> None:
        """Every class there is by now: a subclass may live in a module that nobody told us of."""
        for cls in host_pool_classes():
            self._own(cls, "__init__", self._wrap.construction)
            if cls.__name__ not in CHECKED:
                self._wrap_allocator(cls, HOST)
            if cls.__name__ in {BASE, ANCHOR}:
                continue  # abstract, or without bytes
            for method in methods_of(cls.__name__):
                make = self._wrap.load if method.startswith(LOAD) else self._wrap.backup
                self._own(cls, method, partial(make, method=method))

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

    def _wrap_readers(self) -> None:
        gates = self.observer.gates
        for cls in device_pool_classes():
            self._own(cls, "register_layer_transfer_counter", gates.gating)
            for name in READERS & vars(cls).keys():
                self._own(cls, name, partial(gates.reading, name=name))

    def _wrap_gates(self, module: ModuleType) -> None:
        gates, owned = self.observer.gates, vars(module)
        if module.__name__ == versions.GATES_MODULE:
            self._own(owned["LayerDoneCounter"], "update_producer", gates.production)
            self._own(owned["LayerDoneCounter"], "wait_until", gates.waiting)
            self._own(owned["LayerLoadingEvent"], "complete", gates.completion)

    def _wrap_storage(self, module: ModuleType) -> None:
        storage = self.observer.storage
        for name in ("HiCacheController", "HybridCacheController"):
            cls = vars(module).get(name)
            if isinstance(cls, type) and cls.__module__ == module.__name__:
                self._own(cls, "_page_backup", storage.backing_up)
                for method, op in OF_CONTROLLERS.items():
                    make = storage.setting if op is Op.STORE else storage.getting
                    self._own(cls, method, make)
        backend = vars(module).get("HiCacheStorage")
        if isinstance(backend, type) and backend.__module__ == module.__name__:
            self._own(backend, "register_mem_host_pool_v2", self._registering)
            self._wrap_backends(backend)

    def _wrap_backends(self, base: type) -> None:
        """Every backend there is by now; those that come later, when they are told of a pool."""
        for cls in subclasses([base]):
            for method, op in OF_BACKENDS.items():
                self._own(cls, method, partial(self.observer.storage.batching, op=op))

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
        """One method: its module, class and name."""
        home, name, method = place
        cls = vars(module).get(name)
        if module.__name__ == home and isinstance(cls, type):
            self._own(cls, method, make)

    def _wrap_end(self, cls: type) -> None:
        """What a sender or receiver and its bases define of their own."""
        transfers = self.observer.transfers
        for base in cls.__mro__:
            self._own(base, "send", transfers.sending)
            self._own(base, "send_metadata", transfers.asking)
            self._own(base, "poll", transfers.polling)

    def _wrap_group(self, group: Any) -> None:
        if isinstance(group, type):
            self._own(group, "__init__", self._wrap.grouping)
            self._own(group, "add_entry", self._wrap.grouping)

    def _own(self, cls: type, name: str, make: Callable[[Any], Any]) -> None:
        if name in vars(cls):
            self._patches.replace(cls, name, make)


def _weakly(method: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    """A hook that does not keep its attachment: nobody takes it back when that is over."""
    known = WeakMethod(method)

    def hook(module: ModuleType) -> None:
        called = known()
        if called is not None:
            called(module)

    return hook
