"""The functions that stand in for SGLang's: each calls the original once, with what it was given."""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from hicache_dbg.tracer.attach.sglang.classes import is_ours, ours
from hicache_dbg.tracer.attach.sglang.frames import Frame
from hicache_dbg.tracer.attach.sglang.observer import Observer
from hicache_dbg.tracer.attach.sglang.versions import LOADS, events_of

__all__ = ["Wrappers"]

Function = Callable[..., Any]


class Outermost(dict[type, bool]):
    """Whether a method that was wrapped in ``cls`` is the first of ours that a call of a class meets.

    A class may do more around the method of its base: then its own is the operation, from end to end.
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
        """Around ``__init__`` of a host pool: the outermost one reports the finished pool."""

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
        """Around what puts host pools into a group."""

        @wraps(original)
        def grouped(group: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(group, *args, **kwargs)
            self._observer.grouped(group)
            return result

        return ours(grouped)

    def ownership(self, original: Function) -> Function:
        """Around ``__init__`` of what runs operations: by then the pools are all there."""

        @wraps(original)
        def __init__(owner: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(owner, *args, **kwargs)
            self._observer.announce()

        return ours(__init__)

    def operation(self, original: Function) -> Function:
        """Around a method that is one operation."""
        observer, frames, name = self._observer, self._observer.frames, original.__name__
        running, conclude = observer.calls.running, observer.calls.conclude
        loading = observer.gates.here if name in LOADS else None

        @wraps(original)
        def operation(owner: Any, *args: Any, **kwargs: Any) -> Any:
            session = observer.entered() if frames.current is None else None
            if session is None:
                return original(owner, *args, **kwargs)
            frames.current = frame = Frame(session.probe, (owner, name, args, kwargs))
            running.add(frame.op_id)
            try:
                result = original(owner, *args, **kwargs)
                try:
                    frame.start, frame.over, frame.timed = events_of(owner, name, result)
                except Exception as error:  # noqa: BLE001 - the copies' own streams are followed
                    session.errors.record("attach/operation", error)
            except BaseException as error:
                frame.status = f"{type(error).__name__}: {error}"
                raise
            finally:
                if frame.loads or frame.opened or not frame.on_device:
                    frames.end(frame)
                else:  # the same, of copies on a GPU alone
                    frames.current = None
                    conclude(frame)
                    running.discard(frame.op_id)
                if loading is not None and loading.loading is not None:
                    observer.sent(owner, name, args, kwargs)
            return result

        return ours(operation)

    def backup(self, original: Function, method: str, cls: type) -> Function:
        """Around a method of ``cls`` that copies all layers of some indices to the host."""
        observer, outermost = self._observer, Outermost(cls, method)
        beside, device_of, known = observer.beside, observer.devices.of, observer.devices.by_pool
        frames, around = observer.frames, observer.calls.around

        @wraps(original)
        def backup(pool: Any, *args: Any, **kwargs: Any) -> Any:
            device = known.get(id(pool))
            if device is not None and not device.lane.captures():
                frame = frames.current
                if frame is None:
                    return beside(device, original, method, pool, args, kwargs)
                return around(frame, device, original, method, pool, args, kwargs)
            seen = observer.see(pool, method, args, kwargs) if outermost[type(pool)] else None
            if seen is None:
                return original(pool, *args, **kwargs)
            device = device_of(pool)  # built before we came: made ready by that look
            if device is not None:
                return beside(device, original, method, pool, args, kwargs)
            probe = seen.session.probe
            result: list[Any] = []
            with observer.frames.inside(pool), observer.frames.operation(probe) as frame:
                probe.observe(
                    lambda: [observer.read(seen, frame.op_id)],
                    lambda: result.append(original(pool, *args, **kwargs)),
                )
            return result[0]

        return ours(backup)

    def load(self, original: Function, method: str, cls: type) -> Function:
        """Around a method of ``cls`` that copies one layer of some indices to the device."""
        observer, outermost = self._observer, Outermost(cls, method)
        beside, device_of, known = observer.beside, observer.devices.of, observer.devices.by_pool
        frames, around = observer.frames, observer.calls.around

        @wraps(original)
        def load(pool: Any, *args: Any, **kwargs: Any) -> Any:
            device = known.get(id(pool))
            if device is not None and not device.lane.captures():
                frame = frames.current
                if frame is None:
                    return beside(device, original, method, pool, args, kwargs)
                return around(frame, device, original, method, pool, args, kwargs)
            seen = observer.see(pool, method, args, kwargs) if outermost[type(pool)] else None
            if seen is None or seen.layer is None:
                return original(pool, *args, **kwargs)
            device = device_of(pool)
            if device is not None:
                return beside(device, original, method, pool, args, kwargs)
            probe, layer, given = seen.session.probe, seen.layer, seen.given
            result: list[Any] = []
            with observer.frames.inside(pool), observer.frames.operation(probe) as frame:
                key = (id(pool), id(given.host_indices), id(given.device_indices))
                if key not in frame.loads or layer in frame.loads[key].load.layers:
                    frame.begin(key, observer.open(seen, frame.op_id), given)
                probe.layer(
                    frame.loads[key].load,
                    layer,
                    lambda: result.append(original(pool, *args, **kwargs)),
                )
            return result[0]

        return ours(load)
