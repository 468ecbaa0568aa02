"""The functions that replace SGLang's; each calls the original once, with the same arguments."""

import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from hicache_dbg.tracer.attach.sglang.classes import is_ours, ours
from hicache_dbg.tracer.attach.sglang.frames import Frame, status_of
from hicache_dbg.tracer.attach.sglang.observer import Observer
from hicache_dbg.tracer.attach.sglang.versions import LOADS, events_of

__all__ = ["Wrappers"]

Function = Callable[..., Any]


class Outermost(dict[type, bool]):
    """Tells whether a method wrapped in ``cls`` is the first wrapper that a call on a class reaches.

    A class may extend the method of its base: then its own method is the whole operation.
    """

    def __init__(self, cls: type, method: str) -> None:
        super().__init__()
        self._cls, self._method = cls, method

    def __missing__(self, kind: type) -> bool:
        first = next((base for base in kind.__mro__ if is_ours(vars(base).get(self._method))), None)
        self[kind] = known = first is None or first is self._cls
        return known


class Wrappers:
    """Makes wrappers that report to one observer."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._building = threading.local()

    def construction(self, original: Function) -> Function:
        """Wrap ``__init__`` of a host pool: the outermost call reports the finished pool."""

        @wraps(original)
        def __init__(pool: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            building: set[int] = vars(self._building).setdefault("pools", set())
            inner = id(pool) in building
            building.add(id(pool))
            try:
                original(pool, *args, **kwargs)
            finally:
                if not inner:
                    building.discard(id(pool))
            if not inner:
                self._observer.built(pool, (*args, *kwargs.values()))

        return ours(__init__)

    def grouping(self, original: Function) -> Function:
        """Wrap a method that puts host pools into a group."""

        @wraps(original)
        def grouped(group: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(group, *args, **kwargs)
            self._observer.grouped(group)
            return result

        return ours(grouped)

    def ownership(self, original: Function) -> Function:
        """Wrap ``__init__`` of a class that runs operations: by then all pools exist."""

        @wraps(original)
        def __init__(owner: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(owner, *args, **kwargs)
            self._observer.announce()

        return ours(__init__)

    def operation(self, original: Function) -> Function:
        """Wrap a method that is one operation."""
        observer, frames, name = self._observer, self._observer.frames, original.__name__
        running, end = observer.calls.running, observer.calls.end
        loading = observer.gates.here if name in LOADS else None
        returns_events = name.startswith("submit")

        @wraps(original)
        def operation(owner: Any, *args: Any, **kwargs: Any) -> Any:
            since = time.perf_counter()
            session = observer.ready or observer.entered()
            if frames.current is not None or session is None or not session.probe.enabled:
                return original(owner, *args, **kwargs)
            frames.current = frame = Frame(session.probe, (owner, name, args, kwargs))
            running.add(frame.op_id)
            frame.cost_s = time.perf_counter() - since
            try:
                result = original(owner, *args, **kwargs)
                try:
                    if returns_events:  # without the call: SGLang's thread is here
                        frame.start, frame.over = result.start_event, result.finish_event
                        frame.timed = result.timing_enabled
                    else:
                        frame.start, frame.over, frame.timed = events_of(owner, name, result)
                except Exception as error:  # noqa: BLE001 - the copies' own streams are followed
                    session.errors.record("attach/operation", error)
            except BaseException as error:
                frame.status = status_of(error)
                raise
            finally:
                end(frame)
                if loading is not None and loading.loading is not None:
                    since = time.perf_counter()
                    observer.gates.sent(owner, name, args, kwargs)
                    session.probe.overhead_s += time.perf_counter() - since
            return result

        helper = observer.calls.helper
        return ours(operation) if helper is None else helper.operation(original, ours(operation))

    def backup(self, original: Function, method: str, cls: type) -> Function:
        """Wrap a method of ``cls`` that copies all layers of some indices to the host."""
        observer, outermost = self._observer, Outermost(cls, method)

        def elsewhere(
            again: Function, pool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Any:
            seen = observer.see(pool, method, args, kwargs) if outermost[type(pool)] else None
            if seen is None:
                return original(pool, *args, **kwargs)
            if observer.devices.of(pool) is not None:  # built before we came: read by that look
                return again(pool, *args, **kwargs)
            probe = seen.session.probe
            result: list[Any] = []
            with observer.frames.inside(pool), observer.frames.operation(probe) as frame:
                probe.observe(
                    lambda: [observer.read(seen, frame.op_id)],
                    lambda: result.append(original(pool, *args, **kwargs)),
                )
            return result[0]

        return observer.calls.copying(original, method, elsewhere)

    def load(self, original: Function, method: str, cls: type) -> Function:
        """Wrap a method of ``cls`` that copies one layer of some indices to the device."""
        observer, outermost = self._observer, Outermost(cls, method)

        def elsewhere(
            again: Function, pool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Any:
            seen = observer.see(pool, method, args, kwargs) if outermost[type(pool)] else None
            if seen is None or seen.layer is None:
                return original(pool, *args, **kwargs)
            if observer.devices.of(pool) is not None:
                return again(pool, *args, **kwargs)
            probe, layer, given = seen.session.probe, seen.layer, seen.given
            result: list[Any] = []
            with observer.frames.inside(pool), observer.frames.operation(probe) as frame:
                key = (id(pool), id(given.host_indices), id(given.device_indices))
                copies = frame.here()
                if key not in copies.loads or layer in copies.loads[key].load.layers:
                    copies.begin(key, observer.open(seen, frame.op_id), given)
                probe.layer(
                    copies.loads[key].load,
                    layer,
                    lambda: result.append(original(pool, *args, **kwargs)),
                )
            return result[0]

        return observer.calls.copying(original, method, elsewhere)
