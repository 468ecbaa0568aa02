"""Which operation this thread is in: everything that belongs to one submit is one operation."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hicache_dbg.tracer.attach.sglang.copies import Given
from hicache_dbg.tracer.attach.sglang.open_copies import OpenCopy
from hicache_dbg.tracer.attach.sglang.probe import LayerProbe, OpenLoad

if TYPE_CHECKING:
    from hicache_dbg.tracer.attach.sglang.whose import Request

__all__ = ["NUMBERS", "Begun", "Call", "Frame", "Frames", "HostCopies", "status_of"]

#: The numbers of operations.
NUMBERS = itertools.count(1)


LoadKey = tuple[int, int, int]  # pool, host indices, device indices, by identity
#: Whose method an operation is, its name and what it was given.
Call = tuple[Any, str, tuple[Any, ...], dict[str, Any]]


def status_of(error: BaseException) -> str:
    """Return an exception as the status of what it ended."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # noqa: BLE001 - SGLang's own exception goes on, whether or not it can be printed
        return name


@dataclass(frozen=True, slots=True)
class Begun:
    """A load and what it was given, kept so that no other object takes its identity meanwhile."""

    load: OpenLoad
    given: Given


@dataclass(slots=True)
class HostCopies:
    """The copies of an operation whose both ends are in the host's memory."""

    loads: dict[LoadKey, Begun] = field(default_factory=dict)
    done: list[OpenLoad] = field(default_factory=list)
    opened: list[OpenCopy] = field(default_factory=list)

    def begin(self, key: LoadKey, load: OpenLoad, given: Given) -> None:
        """Begin a load under ``key``; loading the same indices once more is another load."""
        if key in self.loads:
            self.done.append(self.loads[key].load)
        self.loads[key] = Begun(load, given)

    def close(self, probe: LayerProbe) -> None:
        """Close every load that was begun."""
        for load in (*self.done, *(begun.load for begun in self.loads.values())):
            probe.close(load)


class Frame:
    """One operation, from its begin until all of it has been submitted.

    Attributes:
        call: What SGLang called; None for a single call of a pool (``alone``).
        start: SGLang's event of the operation's begin.
        over: SGLang's event of its end; None where the operation is over when the call returns.
        timed: Whether the two events tell the time.
        cost_s: What it has cost SGLang's thread so far, in seconds.
        status: ``ok``, or the exception of SGLang's call.
        on_device: Its copies whose device end is on a GPU, each a
            :class:`~hicache_dbg.tracer.attach.sglang.gpu_ops.DeviceOp`.
        on_host: The others; None until there is one.
    """

    # The compiled helper creates these as well, and reads them by the places of their slots.
    __slots__ = (
        *(
            "alone",
            "began_ns",
            "call",
            "cost_s",
            "ended_ns",
            "on_device",
            "on_host",
            "op_id",
            "over",
        ),
        *("probe", "start", "status", "thread", "timed", "whom"),
    )

    def __init__(self, probe: LayerProbe, call: Call | None = None, *, alone: bool = False) -> None:
        self.probe, self.call, self.alone = probe, call, alone
        self.op_id, self.began_ns = next(NUMBERS), time.time_ns()
        self.start: Any = None
        self.over: Any = None
        self.timed, self.status, self.cost_s = False, "ok", 0.0
        self.on_device: list[Any] = []
        self.on_host: HostCopies | None = None
        self.ended_ns, self.thread = 0, ""
        self.whom: tuple[Request, ...] = ()

    def here(self) -> HostCopies:
        """Return the copies in the host's memory."""
        if self.on_host is None:
            self.on_host = HostCopies()
        return self.on_host


class Frames(threading.local):
    """The operation of the current thread, and the pools whose methods are running on it.

    Args:
        end: Called when an operation has been submitted or has failed.
        running: The numbers of the operations of all threads that are being submitted.
    """

    def __init__(self, end: Callable[[Frame], None], running: set[int]) -> None:
        self._end = end
        self._running = running
        #: The name of this thread.
        self.thread = threading.current_thread().name
        self.current: Frame | None = None
        #: Identities of the pools whose methods are being observed on this thread.
        self.pools: set[int] = set()

    def begin(self, probe: LayerProbe, call: Call | None = None, *, alone: bool = False) -> Frame:
        """Begin an operation on this thread, which is in none; close it with :meth:`end`."""
        self.current = frame = Frame(probe, call, alone=alone)
        self._running.add(frame.op_id)
        return frame

    def end(self, frame: Frame) -> None:
        """End the operation: it has been submitted, or has failed."""
        self._end(frame)

    @contextmanager
    def operation(self, probe: LayerProbe) -> Iterator[Frame]:
        """Yield an operation: the current one, or else a new one for the length of the context."""
        if self.current is not None:
            yield self.current
            return
        frame = self.begin(probe)
        try:
            yield frame
        except BaseException as error:
            frame.status = status_of(error)
            raise
        finally:
            self.end(frame)

    def is_inside(self, pool: Any) -> bool:
        """Return whether a method of this pool is being observed on this thread already."""
        return id(pool) in self.pools

    @contextmanager
    def inside(self, pool: Any) -> Iterator[None]:
        """Mark ``pool`` as being observed."""
        self.pools.add(id(pool))
        try:
            yield
        finally:
            self.pools.discard(id(pool))
