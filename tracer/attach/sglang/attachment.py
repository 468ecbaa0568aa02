"""Wraps SGLang's host pools, and the methods that are operations, as their modules are imported."""

import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import wrapt

from hicache_dbg.tracer.attach.patch import Patches
from hicache_dbg.tracer.attach.sglang import versions
from hicache_dbg.tracer.attach.sglang.classes import ANCHOR, BASE, host_pool_classes, is_ours
from hicache_dbg.tracer.attach.sglang.kinds import LOAD, known_classes, methods_of
from hicache_dbg.tracer.attach.sglang.observer import Observer
from hicache_dbg.tracer.attach.sglang.session import SglangSession
from hicache_dbg.tracer.attach.sglang.wrappers import Wrappers
from hicache_dbg.tracer.sink import PoolPages

__all__ = ["SglangAttachment"]

GROUP = "HostPoolGroup"

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
        self._hooked = False
        if not versions.supported(version):
            self.observer.registry.inventory.not_recognised(
                f"sglang {version}: written for {versions.OLDEST} to {versions.NEWEST}"
            )

    def attach(self) -> None:
        """Wrap what is imported, and what will be; calling it again is harmless."""
        if self.observer.on:
            return
        self.observer.on = True
        modules = dict.fromkeys((*versions.POOL_MODULES, *(o.module for o in self._operations())))
        for name in modules:
            if not self._hooked:
                wrapt.register_post_import_hook(self._imported, name)
            elif name in sys.modules:
                self._imported(sys.modules[name])
        self._hooked = True

    def detach(self) -> None:
        """Put SGLang's own functions back; a second call changes nothing."""
        self.observer.on = False
        self._patches.undo()

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
        session.announce(inventory, self.host_classes())

    def _imported(self, module: ModuleType) -> None:
        if not self.observer.on:
            return
        try:
            self._wrap_pools()
            self._wrap_group(vars(module).get(GROUP))
            for operation in self._operations():
                owner = vars(module).get(operation.cls)
                if operation.module == module.__name__ and isinstance(owner, type):
                    self._replace(owner, operation.method, self._wrap.operation)
                    self._replace(owner, "__init__", self._wrap.ownership)
        except Exception as error:  # noqa: BLE001 - an import of SGLang's never fails because of us
            name = f"{module.__name__}: {type(error).__name__}: {error}"
            self.observer.registry.inventory.not_recognised(name)
            _log.warning("hicache-dbg cannot attach to %s", name)

    def _wrap_pools(self) -> None:
        """Every class there is by now: a subclass may live in a module that nobody told us of."""
        for cls in host_pool_classes():
            self._replace(cls, "__init__", self._wrap.construction)
            self._replace(cls, "alloc", self._wrap.allocation)
            if cls.__name__ in {BASE, ANCHOR}:
                continue  # abstract, or without bytes
            for method in methods_of(cls.__name__):
                make = self._wrap.load if method.startswith(LOAD) else self._wrap.backup
                self._replace(cls, method, partial(make, method=method))

    def _wrap_group(self, group: Any) -> None:
        if isinstance(group, type):
            self._replace(group, "__init__", self._wrap.grouping)
            self._replace(group, "add_entry", self._wrap.grouping)

    def _replace(self, cls: type, name: str, make: Callable[[Any], Any]) -> None:
        if name in vars(cls):
            self._patches.replace(cls, name, make)
