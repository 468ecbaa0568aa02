"""Which operation this thread is in: what belongs to one submit is one operation."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hicache_dbg.tracer.attach.sglang.copies import Given
from hicache_dbg.tracer.attach.sglang.open_copies import OpenCopy
from hicache_dbg.tracer.attach.sglang.probe import LayerProbe, OpenLoad

__all__ = ["Begun", "Call", "Frame", "Frames"]

_ids = itertools.count(1)


LoadKey = tuple[int, int, int]  # pool, host indices, device indices, by identity
#: Whose method an operation is, its name and what it was given.
Call = tuple[Any, str, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Begun:
    """A load, and what it was given: kept so that nothing else takes the identity meanwhile."""

    load: OpenLoad
    given: Given


class Frame:
    """One operation: its number, the loads that it has begun, and the copies that it has open.

    ``over`` is the event that says that it is over; None where it is by its end; ``start`` the one of
    its begin, and ``timed`` whether they tell the time. ``alone`` says
    that it is a single call of a pool, no operation of SGLang's; ``call`` is what that was called with.
    ``on_device`` are the copies whose ends are on a GPU.
    """

    __slots__ = (
        "alone",
        "call",
        "done",
        "loads",
        "loads_on_device",
        "on_device",
        "op_id",
        "opened",
        "over",
        "probe",
        "start",
        "status",
        "timed",
    )

    def __init__(self, probe: LayerProbe, call: Call | None = None, *, alone: bool = False) -> None:
        self.probe, self.call, self.alone = probe, call, alone
        self.op_id = next(_ids)
        self.loads: dict[LoadKey, Begun] = {}
        self.done: list[OpenLoad] = []
        self.opened: list[OpenCopy] = []
        self.on_device: list[Any] = []
        self.loads_on_device: dict[LoadKey, Any] = {}
        self.status = "ok"
        self.over: Any = None
        self.start: Any = None
        self.timed = False

    def begin(self, key: LoadKey, load: OpenLoad, given: Given) -> None:
        """A load under ``key``; the same indices loaded once more are another load."""
        if key in self.loads:
            self.done.append(self.loads[key].load)
        self.loads[key] = Begun(load, given)


class Frames(threading.local):
    """The operation of the current thread, and the pools whose methods it is in.

    Args:
        submitted: told which copies an operation has open, and of the event that ends it.
        concluded: told of an operation that has copies on a GPU as it ends, before.
        running: the numbers of those that are under way, of all threads.
    """

    def __init__(
        self,
        submitted: Callable[[list[OpenCopy], Any], None],
        concluded: Callable[[Frame], None],
        running: set[int],
    ) -> None:
        self._submitted = submitted
        self._concluded = concluded
        self._running = running
        #: The name of this thread.
        self.thread = threading.current_thread().name
        self.current: Frame | None = None
        #: Identities of the pools whose methods are being observed on this thread.
        self.pools: set[int] = set()

    def begin(self, probe: LayerProbe, call: Call | None = None, *, alone: bool = False) -> Frame:
        """An operation begins on this thread, which is in none; to be closed with :meth:`end`."""
        self.current = frame = Frame(probe, call, alone=alone)
        self._running.add(frame.op_id)
        return frame

    def end(self, frame: Frame) -> None:
        """The operation has been submitted, or has failed."""
        self.current = None
        try:
            if frame.on_device:
                self._concluded(frame)
            if frame.loads:
                for load in (*frame.done, *(begun.load for begun in frame.loads.values())):
                    frame.probe.close(load)
            if frame.opened:
                self._submitted(frame.opened, frame.over)
        finally:
            self._running.discard(frame.op_id)

    @contextmanager
    def operation(self, probe: LayerProbe) -> Iterator[Frame]:
        """An operation; inside another one it is part of that."""
        if self.current is not None:
            yield self.current
            return
        frame = self.begin(probe)
        try:
            yield frame
        except BaseException as error:
            frame.status = f"{type(error).__name__}: {error}"
            raise
        finally:
            self.end(frame)

    def is_inside(self, pool: Any) -> bool:
        """Whether a method of this pool is being observed on this thread already."""
        return id(pool) in self.pools

    @contextmanager
    def inside(self, pool: Any) -> Iterator[None]:
        """While a method of ``pool`` is observed."""
        self.pools.add(id(pool))
        try:
            yield
        finally:
            self.pools.discard(id(pool))
