"""Which wrapper goes around which method that moves pages to storage and back."""

from collections.abc import Callable
from functools import partial, wraps
from types import ModuleType
from typing import Any

from hicache_dbg.tracer.attach.sglang.classes import ours, subclasses
from hicache_dbg.tracer.attach.sglang.method_patches import MethodPatches
from hicache_dbg.tracer.attach.sglang.observer import Observer
from hicache_dbg.tracer.attach.sglang.storage import OF_BACKENDS, OF_CONTROLLERS
from hicache_dbg.tracer.events import Op

__all__ = ["StorageHooks"]


class StorageHooks:
    """Wraps the storage methods of controllers and backends."""

    def __init__(self, methods: MethodPatches, observer: Observer) -> None:
        self._methods = methods
        self._observer = observer

    def wrap_controller(self, controller: type) -> None:
        """Wrap the methods of a controller class that store and fetch pages."""
        storage = self._observer.storage
        self._methods.own(controller, "_page_backup", storage.backing_up)
        for method, op in OF_CONTROLLERS.items():
            make = storage.setting if op is Op.STORE else storage.getting
            self._methods.own(controller, method, make)

    def wrap_backends(self, module: ModuleType) -> None:
        """Wrap every storage backend that exists, once their base is imported.

        Later ones are wrapped when they are given a pool.
        """
        base = vars(module).get("HiCacheStorage")
        if isinstance(base, type) and base.__module__ == module.__name__:
            self._methods.own(base, "register_mem_host_pool_v2", self._registering)
            self._wrap_subclasses(base)

    def _wrap_subclasses(self, base: type) -> None:
        for cls in subclasses([base]):
            for method, op in OF_BACKENDS.items():
                self._methods.own(cls, method, partial(self._observer.storage.batching, op=op))

    def _registering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the method that gives a backend its host pool."""
        observer = self._observer

        @wraps(original)
        def register_mem_host_pool_v2(backend: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(backend, *args, **kwargs)
            with observer.say.errors("attach/backend"):
                if observer.on:
                    for cls in type(backend).__mro__[:-1]:
                        self._wrap_subclasses(cls)
            return result

        return ours(register_mem_host_pool_v2)
