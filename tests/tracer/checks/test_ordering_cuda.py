"""PyTorch's GPU trace as clocks: what its callbacks order, and what they do not. No GPU is needed."""

from collections.abc import Iterator

import numpy as np
import pytest
from torch.cuda import _gpu_trace

from hicache_dbg.tracer.attach import gpu_trace
from hicache_dbg.tracer.checks.ordering import Ordering, Role, Space
from hicache_dbg.tracer.checks.ordering_clocks import ActorId, Clocks
from hicache_dbg.tracer.checks.ordering_cuda import CudaOrder, stream_actor
from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.events import FaultClass

#: Each kind in a range of its own, so that mix-ups show.
FORWARD, COPY = 1000, 2000
EVENT, OTHER = 501, 502
HOST, WORKER = ActorId(71), ActorId(72)
POOL = Space("device", "kv")


class Rig:
    """Clocks, the order check, and two streams that touch page 3."""

    def __init__(self) -> None:
        self.clocks = Clocks()
        self.order = CudaOrder(self.clocks)
        self.ordering = Ordering()
        self.ordering.watch(POOL, 1, 8)

    def touch(self, stream: int, role: Role, thread: ActorId = HOST) -> list[Violation]:
        """Read or write page 3 by a kernel on ``stream``."""
        stamp = self.clocks.step(self.order.handed(stream, thread))
        by = Access(role.name.lower(), f"stream {stream}")
        pages = np.array([3], np.int64)
        return self.ordering.access(POOL, (0,), pages, role=role, stamp=stamp, by=by)


@pytest.fixture
def rig() -> Rig:
    """A page that the forward stream has just written."""
    rig = Rig()
    assert rig.touch(FORWARD, Role.COMPUTE_WRITE) == []
    return rig


def test_a_copy_that_waits_for_the_writers_event_is_in_order(rig: Rig) -> None:
    """The event is recorded after the write and waited for before the read."""
    rig.order.event_recorded(EVENT, FORWARD, HOST)
    rig.order.event_waited(EVENT, COPY)
    assert rig.touch(COPY, Role.BACKUP_READ) == []


def test_a_copy_without_a_wait_is_a_race(rig: Rig) -> None:
    """Neither the event alone nor the host's order of submission orders anything."""
    rig.order.event_recorded(EVENT, FORWARD, HOST)
    (found,) = rig.touch(COPY, Role.BACKUP_READ)
    assert found.cls is FaultClass.STORE_BEFORE_WRITE
    assert str(found.previous) == "compute_write on stream 1000"


def test_an_event_that_was_recorded_earlier_is_no_excuse() -> None:
    """It covers only the stream's work up to then."""
    rig = Rig()
    rig.order.event_recorded(EVENT, FORWARD, HOST)
    rig.touch(FORWARD, Role.COMPUTE_WRITE)
    rig.order.event_waited(EVENT, COPY)
    assert len(rig.touch(COPY, Role.BACKUP_READ)) == 1


def test_an_events_number_that_begins_anew_forgets_the_old_one(rig: Rig) -> None:
    """A new event may reuse a deleted event's handle."""
    rig.order.event_recorded(EVENT, FORWARD, HOST)
    rig.order.event_forgotten(EVENT)
    rig.order.event_waited(EVENT, COPY)
    assert len(rig.touch(COPY, Role.BACKUP_READ)) == 1


@pytest.mark.parametrize("how", ["event", "stream", "device"])
def test_what_the_host_has_waited_for_comes_before_what_it_submits(rig: Rig, how: str) -> None:
    """This holds for the thread that waited, not for any other."""
    rig.order.event_recorded(EVENT, FORWARD, HOST)
    if how == "event":
        rig.order.event_synchronized(EVENT, HOST)
    elif how == "stream":
        rig.order.stream_synchronized(FORWARD, HOST)
    else:
        rig.order.device_synchronized(HOST)
    assert rig.touch(COPY, Role.BACKUP_READ) == []
    assert len(rig.touch(COPY + 1, Role.BACKUP_READ, WORKER)) == 1


def test_an_event_carries_what_its_recorder_had_waited_for(rig: Rig) -> None:
    """A worker synchronised, copied, and recorded: a waiter is ordered after all of it."""
    rig.order.event_recorded(EVENT, FORWARD, HOST)
    rig.order.event_synchronized(EVENT, WORKER)
    rig.order.event_recorded(OTHER, COPY, WORKER)
    rig.order.event_waited(OTHER, COPY + 1)
    assert rig.touch(COPY + 1, Role.BACKUP_READ, ActorId(73)) == []


def test_streams_are_no_threads() -> None:
    """The default stream's handle is 0; no stream's number equals a thread's."""
    assert len({stream_actor(0), stream_actor(1), ActorId(0), ActorId(1)}) == 4


class Told:
    """A listener that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def event_recorded(self, event: int, stream: int) -> None:
        """An event on a stream."""
        self.calls.append(("recorded", event, stream))

    def event_waited(self, event: int, stream: int) -> None:
        """A stream waits."""
        self.calls.append(("waited", event, stream))

    def event_synchronized(self, event: int) -> None:
        """The host waits for an event."""
        self.calls.append(("synchronized", event))

    def event_forgotten(self, event: int) -> None:
        """An event begins or ends."""
        self.calls.append(("forgotten", event))

    def stream_synchronized(self, stream: int) -> None:
        """The host waits for a stream."""
        self.calls.append(("stream", stream))

    def device_synchronized(self) -> None:
        """The host waits for all."""
        self.calls.append(("device",))


@pytest.fixture
def told() -> Iterator[Told]:
    """A listener, removed at the end."""
    listener = Told()
    gpu_trace.listen(listener)
    yield listener
    gpu_trace.ignore(listener)


def fire() -> None:
    """Call the callbacks as torch does when a program uses events and streams."""
    _gpu_trace.EventCreationCallbacks.fire_callbacks(EVENT)
    _gpu_trace.EventRecordCallbacks.fire_callbacks(EVENT, FORWARD)
    _gpu_trace.EventWaitCallbacks.fire_callbacks(EVENT, COPY)
    _gpu_trace.EventSynchronizationCallbacks.fire_callbacks(EVENT)
    _gpu_trace.StreamSynchronizationCallbacks.fire_callbacks(COPY)
    _gpu_trace.DeviceSynchronizationCallbacks.fire_callbacks()
    _gpu_trace.EventDeletionCallbacks.fire_callbacks(EVENT)


def test_torchs_reports_reach_the_listener_once(told: Told) -> None:
    """They arrive in order, even after listening twice."""
    gpu_trace.listen(told)
    fire()
    assert told.calls == [
        ("forgotten", EVENT),
        ("recorded", EVENT, FORWARD),
        ("waited", EVENT, COPY),
        ("synchronized", EVENT),
        ("stream", COPY),
        ("device",),
        ("forgotten", EVENT),
    ]


def test_callbacks_are_kept_once_and_inert(told: Told) -> None:
    """Listening again registers nothing more, and after ignoring nothing is called."""
    before = len(_gpu_trace.EventRecordCallbacks.callback_list)
    gpu_trace.ignore(told)
    fire()
    other = Told()
    gpu_trace.listen(other)
    gpu_trace.ignore(other)
    assert told.calls == []
    assert len(_gpu_trace.EventRecordCallbacks.callback_list) == before
