"""Attach to a running SGLang: find what exists already, and report what stays out of reach."""

import os
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

from hicache_dbg.tracer.attach.sglang.alive import Alive, find
from hicache_dbg.tracer.attach.sglang.attachment import SglangAttachment
from hicache_dbg.tracer.attach.sglang.classes import (
    device_pool_classes,
    host_pool_classes,
    is_host_pool,
    is_ours,
    pool_group_classes,
)
from hicache_dbg.tracer.attach.sglang.place import of_running, placed
from hicache_dbg.tracer.attach.sglang.session import SglangSession
from hicache_dbg.tracer.attach.sglang.start import begin, sglang_version
from hicache_dbg.tracer.attach.sglang.transfers import manager_classes
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Native, Settings
from hicache_dbg.tracer.sink import PoolStateReader, Sink

__all__ = ["LateAttachment", "NoPoolsError", "attach_late"]

#: Creates the sinks of a rank; they ask the reader for the pools' pages.
SinksOf = Callable[[Settings, PoolStateReader], Sequence[Sink]]

#: What is out of reach of every late attachment.
UNDER_WAY = (
    "loads and hand-overs that are in flight now: followed from the next one on",
    "CUDA graphs that were captured before now: replayed as they were captured",
)


class NoPoolsError(RuntimeError):
    """SGLang is imported here, but nothing that moves pages was ever built."""


class LateAttachment(SglangAttachment):
    """Finds host pools, gates and managers that exist already."""

    def __init__(
        self, version: str, start: Callable[[], SglangSession], native: Native = Native.OFF
    ) -> None:
        super().__init__(version, start, native)
        self.hooks.broadcasts.numbered = False  # each rank is switched on at another load
        self.alive = find(
            {
                *host_pool_classes(),
                *device_pool_classes(),
                *manager_classes(),
                *pool_group_classes(),
            }
        )

    def attach(self) -> None:
        """Attach as the base does, and treat what exists as built now.

        The host keeps running: a pool that it copies before we have read it is read then.
        """
        if self.attached:
            return
        self.attached = True
        self._wrap_all()  # the wrappers pass everything on, as long as the observer is not on
        for name in _bound_before(self.alive):
            self.observer.registry.inventory.not_recognised(
                f"{name}: bound before we attached, so not followed"
            )
        self.observer.on = True
        session = self.observer.started()
        if session is None:  # the reason was logged
            return
        self._adopt(session, self.alive)
        self.alive = Alive((), ())  # our references keep nothing alive
        self.observer.announce()

    def _adopt(self, session: SglangSession, alive: Alive) -> None:
        for pool in filter(is_host_pool, alive.objects):
            self.observer.adopt(session, pool)
        for group in alive.of(set(pool_group_classes())):
            self.observer.grouped(group)
        self.observer.gates.adopt(alive.of(set(device_pool_classes())))
        for unknown in self.observer.transfers.adopt(alive.of(set(manager_classes()))):
            self.observer.registry.inventory.not_recognised(unknown)

    def notes(self) -> tuple[str, ...]:
        """Return what this attachment cannot reach, by name."""
        return (*UNDER_WAY, *self.observer.registry.inventory.unrecognised)


def attach_late(settings: Settings, sinks_of: SinksOf) -> tuple[Runtime, tuple[str, ...]]:
    """Attach to this process; return the runtime, and what stays out of reach.

    Raises:
        NoPoolsError: If there is nothing to attach to.
    """
    place = of_running()
    ranked = placed(settings, place)
    made: list[SglangSession] = []
    attachment = LateAttachment(sglang_version(), lambda: made[0], settings.native)
    movers = {*host_pool_classes(), *manager_classes()}
    if not attachment.alive.of(movers):
        raise NoPoolsError(
            f"process {os.getpid()} imports SGLang and has built no host pool: name a scheduler, one "
            "of the processes called sglang::scheduler..."
        )
    sinks = sinks_of(ranked, attachment.pool_state)
    runtime, _ = begin(ranked, attachment, sinks, place, made.append)
    return runtime, attachment.notes()


def _bound_before(alive: Alive) -> list[str]:
    """Return the names of methods whose objects still hold the function that we have wrapped."""
    unwrapped = {_name(method) for method in alive.methods if _is_unwrapped(method)}
    return sorted(unwrapped)


def _is_unwrapped(method: MethodType) -> bool:
    """Return whether a bound method is the original of what its class now has as our wrapper."""
    function: Any = method.__func__
    if is_ours(function):
        return False
    current = getattr(type(method.__self__), getattr(function, "__name__", ""), None)
    while current is not None and is_ours(current):
        current = getattr(current, "__wrapped__", None)
        if current is function:
            return True
    return False


def _name(method: MethodType) -> str:
    return f"{type(method.__self__).__name__}.{method.__func__.__name__}"
