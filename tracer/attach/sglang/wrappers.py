"""The functions that stand in for SGLang's: each calls the original once, with what it was given."""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from hicache_dbg.tracer.attach.sglang.classes import ours
from hicache_dbg.tracer.attach.sglang.observer import Observer
from hicache_dbg.tracer.attach.sglang.versions import over_event

__all__ = ["Wrappers"]

Function = Callable[..., Any]


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

        @wraps(original)
        def operation(owner: Any, *args: Any, **kwargs: Any) -> Any:
            session = self._observer.session()
            if session is None:
                return original(owner, *args, **kwargs)
            with self._observer.frames.operation(session.probe.close) as frame:
                result = original(owner, *args, **kwargs)
                frame.over = over_event(owner, original.__name__, result)
            return result

        return ours(operation)

    def backup(self, original: Function, method: str) -> Function:
        """Around a method that copies all layers of some indices to the host."""
        observer = self._observer

        @wraps(original)
        def backup(pool: Any, *args: Any, **kwargs: Any) -> Any:
            seen = observer.see(pool, method, args, kwargs)
            if seen is None:
                return original(pool, *args, **kwargs)
            probe = seen.session.probe
            result: list[Any] = []
            with observer.frames.inside(pool), observer.frames.operation(probe.close) as frame:
                probe.observe(
                    lambda: [observer.read(seen, frame.op_id)],
                    lambda: result.append(original(pool, *args, **kwargs)),
                )
            return result[0]

        return ours(backup)

    def load(self, original: Function, method: str) -> Function:
        """Around a method that copies one layer of some indices to the device."""
        observer = self._observer

        @wraps(original)
        def load(pool: Any, *args: Any, **kwargs: Any) -> Any:
            seen = observer.see(pool, method, args, kwargs)
            if seen is None or seen.layer is None:
                return original(pool, *args, **kwargs)
            probe, layer, given = seen.session.probe, seen.layer, seen.given
            result: list[Any] = []
            with observer.frames.inside(pool), observer.frames.operation(probe.close) as frame:
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

    def broadcast(self, original: Function) -> Function:
        """Around what begins a load that another rank makes: it comes here by a broadcast.

        There is no host page to compare it with on a rank that keeps none: a line, and tiles that say so.
        """
        observer = self._observer

        @wraps(original)
        def prepare_broadcast(broadcaster: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(broadcaster, indices, *args, **kwargs)
            session = observer.session()
            if session is not None and not broadcaster.is_src:
                with session.errors.at("attach/broadcast"):
                    observer.received(session, indices)
            return result

        return ours(prepare_broadcast)
