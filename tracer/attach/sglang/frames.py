"""Which operation this thread is in: what belongs to one submit is one operation."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hicache_dbg.tracer.attach.sglang.copies import Given
from hicache_dbg.tracer.attach.sglang.open_copies import OpenCopy
from hicache_dbg.tracer.attach.sglang.probe import OpenLoad

__all__ = ["Begun", "Frame", "Frames"]

_ids = itertools.count(1)


LoadKey = tuple[int, int, int]  # pool, host indices, device indices, by identity


@dataclass(frozen=True, slots=True)
class Begun:
    """A load, and what it was given: kept so that nothing else takes the identity meanwhile."""

    load: OpenLoad
    given: Given


@dataclass(slots=True)
class Frame:
    """One operation: its number, the loads that it has begun, and the copies that it has open.

    ``over`` is the event that says that it is over; None where it is by its end.
    """

    op_id: int = field(default_factory=lambda: next(_ids))
    loads: dict[LoadKey, Begun] = field(default_factory=dict)
    done: list[OpenLoad] = field(default_factory=list)
    opened: list[OpenCopy] = field(default_factory=list)
    over: Any = None

    def begin(self, key: LoadKey, load: OpenLoad, given: Given) -> None:
        """A load under ``key``; the same indices loaded once more are another load."""
        if key in self.loads:
            self.done.append(self.loads[key].load)
        self.loads[key] = Begun(load, given)


class Frames(threading.local):
    """The operation of the current thread, and the pools whose methods it is in.

    ``running`` holds the numbers of those that are under way, of all threads.
    """

    def __init__(self, submitted: Callable[[list[OpenCopy], Any], None], running: set[int]) -> None:
        self._submitted = submitted
        self._running = running
        self.current: Frame | None = None
        self._inside: set[int] = set()

    @contextmanager
    def operation(self, close: Callable[[OpenLoad], None]) -> Iterator[Frame]:
        """An operation; inside another one it is part of that."""
        if self.current is not None:
            yield self.current
            return
        self.current = frame = Frame()
        self._running.add(frame.op_id)
        try:
            yield frame
        finally:
            self.current = None
            try:
                for load in (*frame.done, *(begun.load for begun in frame.loads.values())):
                    close(load)
                self._submitted(frame.opened, frame.over)
            finally:
                self._running.discard(frame.op_id)

    def is_inside(self, pool: Any) -> bool:
        """Whether a method of this pool is being observed on this thread already."""
        return id(pool) in self._inside

    @contextmanager
    def inside(self, pool: Any) -> Iterator[None]:
        """While a method of ``pool`` is observed."""
        self._inside.add(id(pool))
        try:
            yield
        finally:
            self._inside.discard(id(pool))
