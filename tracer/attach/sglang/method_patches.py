"""Replace methods of SGLang's classes, if they have the form that our wrappers expect."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from hicache_dbg.tracer.attach.patch import Patches
from hicache_dbg.tracer.attach.sglang.fitting import unfit
from hicache_dbg.tracer.attach.sglang.inventory import Inventory

__all__ = ["Make", "MethodPatches", "nested"]

#: Returns the wrapper of a function.
Make = Callable[[Any], Any]


class MethodPatches:
    """Replaces methods, and notes those that it cannot.

    Args:
        patches: holds what was replaced.
        inventory: learns what was refused, and why.
    """

    def __init__(self, patches: Patches, inventory: Inventory) -> None:
        self._patches = patches
        self._inventory = inventory
        #: Methods that were refused, as ``class.method``.
        self.refused: set[str] = set()

    def own(self, cls: type, name: str, make: Make) -> None:
        """Wrap the method ``name`` if ``cls`` itself defines it; idempotent."""
        if name not in vars(cls):
            return
        reason = unfit(name, vars(cls)[name])
        if not reason:
            self._patches.replace(cls, name, make)
            return
        self.refused.add(f"{cls.__name__}.{name}")
        self._inventory.not_recognised(f"{cls.__name__}.{name}: {reason}")

    def at(self, module: ModuleType, place: tuple[str, str, str], make: Make) -> None:
        """Wrap the method at ``place`` (module, class, method) if that is in ``module``."""
        home, name, method = place
        cls = vars(module).get(name)
        if module.__name__ == home and isinstance(cls, type):
            self.own(cls, method, make)


def nested(outer: Make, inner: Make, original: Any) -> Any:
    """Wrap ``original`` in ``inner``, and that in ``outer``."""
    return outer(inner(original))
