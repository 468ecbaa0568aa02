"""Wrap SGLang's host pools and operation methods as their modules are imported."""

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import ModuleType
from weakref import WeakMethod

import wrapt

from hicache_dbg.tracer.attach.sglang import versions
from hicache_dbg.tracer.attach.sglang.classes import BASE, host_pool_classes, is_ours
from hicache_dbg.tracer.attach.sglang.followed import followed
from hicache_dbg.tracer.attach.sglang.hooks import Hooks
from hicache_dbg.tracer.attach.sglang.kinds import known_classes
from hicache_dbg.tracer.attach.sglang.observer import Observer
from hicache_dbg.tracer.attach.sglang.session import SglangSession
from hicache_dbg.tracer.settings import Native
from hicache_dbg.tracer.sink import PoolState

__all__ = ["SglangAttachment"]

#: How long detaching waits for the host's threads to leave our wrappers, in seconds.
WITHIN_S = 0.5


class SglangAttachment:
    """Attaches to what the installed version of SGLang has.

    Nothing of ours runs until this process builds its first host pool; then ``start`` creates the
    session. ``attach`` and ``detach`` are a symmetric, idempotent pair; after ``detach`` SGLang's
    functions are the very same objects as before.
    """

    def __init__(
        self, version: str, start: Callable[[], SglangSession], native: Native = Native.OFF
    ) -> None:
        self.version = version
        self.observer = Observer(version, start, self._announce, native)
        self.hooks = Hooks(self.observer, version)
        self.attached = False
        self._hooked = False
        if not versions.supported(version):
            self.observer.registry.inventory.not_recognised(
                f"sglang {version}: written for {versions.OLDEST} to {versions.NEWEST}"
            )

    def attach(self) -> None:
        """Wrap what is imported now or later; idempotent."""
        if self.attached:
            return
        self.attached = self.observer.on = True
        self._wrap_all()

    def _wrap_all(self) -> None:
        for name in dict.fromkeys(self.hooks.modules()):
            if not self._hooked:
                wrapt.register_post_import_hook(_weakly(self._imported), name)
            elif name in sys.modules:
                self._imported(sys.modules[name])
        self._hooked = True

    def detach(self) -> None:
        """Restore SGLang's own functions; idempotent.

        Operations in flight end as they began, and are waited for briefly.
        """
        if self.observer.on:
            self.observer.bytes.tell()
        self.attached = self.observer.on = False
        self.hooks.patches.undo()
        self.observer.settle(WITHIN_S)

    def pool_state(self) -> Iterator[PoolState]:
        """Return host pages by pool and state, and lookup outcomes, at the time of the call."""
        yield from self.observer.registry.pool_state()
        yield from self.hooks.lookups.read()

    def host_classes(self) -> set[str]:
        """Return every host pool class of this version, and any other that exists, built or not."""
        found = {cls.__name__ for cls in host_pool_classes()} | known_classes(self.version)
        return found - {BASE}

    def _announce(self, session: SglangSession) -> None:
        """Publish what is attached, and name what should be and is not."""
        inventory = self.observer.registry.inventory
        for missing in self._missing():
            inventory.not_recognised(missing)
        session.register(
            inventory.take(),
            host_classes=self.host_classes(),
            built=inventory.built,
            unrecognised=inventory.unrecognised,
        )

    def _missing(self) -> Iterator[str]:
        """Yield each module or method that this version lacks, or that could not be wrapped."""
        operations = ((op.module, op.cls, op.method) for op in self.hooks.operations)
        for home, cls, method in (*operations, *followed()):
            name, module = f"{cls}.{method}", sys.modules.get(home)
            if module is None:
                if not _exists(home):
                    yield f"{home}: no such module in sglang {self.version}"
            elif name in self.hooks.methods.refused:
                continue  # already reported, with the reason
            elif not is_ours(getattr(getattr(module, cls, None), method, None)):
                yield f"{name}: not attached in sglang {self.version}"

    def _imported(self, module: ModuleType) -> None:
        if self.attached:
            self.hooks.wrap(module)


def _exists(module: str) -> bool:
    """Return whether a module that is not imported yet exists."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # its package does not exist either
        return False


def _weakly(method: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    """Return an import hook that does not keep its attachment alive: wrapt never removes hooks."""
    reference = WeakMethod(method)

    def hook(module: ModuleType) -> None:
        alive = reference()
        if alive is not None:
            alive(module)

    return hook
