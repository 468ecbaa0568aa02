"""The path from the hot path to the sinks: one append on the host's thread, one thread here.

The hot path appends a record to a bounded ring buffer. The bus's thread takes records in order,
waits until a record's digests are readable, turns it into events, counts them, and hands them to
each sink's outbox. The host's threads never wait for the bus.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from hicache_dbg.tracer.boot import boot_ns
from hicache_dbg.tracer.collapse import FindingCollapser
from hicache_dbg.tracer.events import Event, Finding, Health
from hicache_dbg.tracer.forks import after_fork
from hicache_dbg.tracer.outbox import Outbox
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.sink import Sink
from hicache_dbg.tracer.totals import Totals

__all__ = ["Bus", "Holding", "Record"]

IDLE_WAIT_S = 0.02
#: Most records per turn; between turns the bus checks its clock and whether it should stop.
TURN = 1024
#: Extra ring slots for published events, which are rare and matter more than another copy.
RESERVE = 1024
HEARTBEAT_S = 60.0


class Record(Protocol):
    """What the hot path appends; it becomes events once its digests are readable."""

    def ready(self) -> bool:
        """Return whether everything the record refers to can be read without waiting."""
        ...

    def events(self) -> Iterable[Event]:
        """Return the events.

        Called once, on the bus's thread, after :meth:`ready` returned True.
        """
        ...


@runtime_checkable
class Holding(Record, Protocol):
    """A record that holds something which others wait for or may use again."""

    def drop(self) -> None:
        """Let go of it: the record was accepted, but the bus closed before it was readable."""
        ...


class Bus:
    """Takes records from the hot path and delivers events to sinks.

    Args:
        sinks: each gets its own outbox (queue and thread).
        capacity: most records in the ring, and most events in each outbox.
        errors: counts failures of the tracer itself.
        rank: written into the bus's own events.
        overhead: returns the seconds the instrument has cost the host's threads so far.
        on_finding: called on the bus's thread with each delivered finding.
        heartbeat_s: seconds between two health events; a final one is sent at close.
        prepare: prepares the bus's thread for records of devices; called every turn until it
            returns True.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        *,
        capacity: int,
        errors: InternalErrors,
        rank: int = 0,
        overhead: Callable[[], float] = lambda: 0.0,
        on_finding: Callable[[Finding], None] = lambda _: None,
        heartbeat_s: float = HEARTBEAT_S,
        prepare: Callable[[], bool] = lambda: True,
    ) -> None:
        self._sinks = tuple(sinks)
        self._capacity = capacity
        self._errors = errors
        self._rank = rank
        self._overhead = overhead
        self._on_finding = on_finding
        self._heartbeat_s = heartbeat_s
        self._prepare = prepare
        self.closed = False
        self._begin()
        after_fork(self._begin_in_child)

    def _begin_in_child(self) -> None:
        """Start anew: a forked child has no threads and must not deliver the parent's records."""
        if not self.closed:
            self._begin()

    def _begin(self) -> None:
        self._ring: deque[Record] = deque()
        self._dropped = 0
        self._late = 0
        self._at_work = False  # a turn is under way
        self._totals = Totals()
        self._collapser = FindingCollapser()
        self._wake = threading.Event()
        self._idle = threading.Condition()
        self._stop = False
        self._prepared = False
        self._outboxes = tuple(Outbox(sink, self._capacity) for sink in self._sinks)
        for sink in self._sinks:
            if watch := getattr(
                sink, "watch", None
            ):  # it asks for our state when it is asked itself
                watch(self.health)
        self._thread = threading.Thread(target=self._run, name="hicache-dbg-bus", daemon=True)
        self._thread.start()

    def push(self, record: Record) -> bool:
        """Append a record; return False and count a drop if the ring is full or closed.

        What a refused record holds is the caller's to let go of.
        """
        if self._stop or len(self._ring) >= self._capacity:
            return self._append(record, self._capacity)
        self._ring.append(record)
        return True

    def publish(self, event: Event, *, rare: bool = True) -> bool:
        """Append a complete event; if it is ``rare`` it has room even if copies fill the ring."""
        return self._append(_Ready(event), self._capacity + (RESERVE if rare else 0))

    def insist(self, record: Record) -> bool:
        """Append a rare record that must not be lost, however full the ring is.

        Return False if the bus is closed.
        """
        return self._append(record, math.inf)

    def _append(self, record: Record, room: float) -> bool:
        if self._stop:
            self._late += 1
        elif len(self._ring) >= room:
            self._dropped += 1
        else:
            self._ring.append(record)
            return True
        return False

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until everything pushed so far has been offered to every sink.

        Returns:
            False if that took longer than ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        done = self.settle(timeout)
        left = max(0.0, deadline - time.monotonic())
        return done and all(outbox.drain(left) for outbox in self._outboxes)

    def settle(self, timeout: float) -> bool:
        """Wait until everything pushed so far has been judged.

        Return False on timeout (seconds).
        """
        self._wake.set()
        with self._idle:
            return self._idle.wait_for(lambda: not self._ring and not self._at_work, timeout)

    def close(self, timeout: float = 2.0) -> None:
        """Deliver what is queued, for at most ``timeout`` seconds per stage, and stop."""
        if self.closed:
            return
        self.closed = True
        self.flush(timeout)  # before the final health event, which reports what sinks lost
        self._stop = True
        self._wake.set()
        self._thread.join(timeout)
        for outbox in self._outboxes:
            outbox.end(timeout)  # start all deadlines first, so dead sinks do not add up
        for outbox in self._outboxes:
            outbox.close(timeout)

    def health(self, *, closing: bool = False) -> Health:
        """Return the tracer's report about itself at this moment."""
        totals = self._totals
        lost = {"bus/queue_full": self._dropped, "bus/closed": self._late}
        errors = self._errors.counts()
        for outbox in self._outboxes:
            lost |= {f"{outbox.name}/{why}": n for why, n in outbox.losses().items()}
            if outbox.failures:
                errors[f"sink/{outbox.name}"] = outbox.failures
        return Health(
            time_ns=time.time_ns(),
            rank=self._rank,
            events=totals.events,
            copies=totals.copies,
            verified=totals.verified,
            witnessed=totals.witnessed,
            mismatched=totals.mismatched,
            skipped=dict(totals.skipped),
            findings=totals.findings,
            queue_depth=len(self._ring),
            queues={outbox.name: outbox.depth for outbox in self._outboxes},
            dropped={where: n for where, n in lost.items() if n},
            errors=errors,
            overhead_s=max(
                0.0, self._overhead()
            ),  # parts of it are measured by a clock that is set
            closing=closing,
            boot_ns=boot_ns(),
        )

    def unheard(self, silent: Container[str]) -> bool:
        """Return whether a sink lost events, and none but the ``silent`` ones took the last of them."""
        lost = any(outbox.losses() for outbox in self._outboxes)
        return lost and not any(
            outbox.took_last for outbox in self._outboxes if outbox.name not in silent
        )

    def _run(self) -> None:
        beat = time.monotonic() + self._heartbeat_s
        while not self._stop:
            if not self._guarded_turn():
                self._wake.wait(IDLE_WAIT_S)
                self._wake.clear()
            if time.monotonic() >= beat:
                beat = time.monotonic() + self._heartbeat_s
                self._beat(closing=False)
        while self._guarded_turn():
            pass
        self._abandon()
        self._beat(closing=True)

    def _abandon(self) -> None:
        """Count and drop the records that did not become readable in time."""
        while self._ring:
            record = self._ring.popleft()
            self._late += 1
            if isinstance(record, Holding):
                with self._errors.at("bus/drop"):
                    record.drop()

    def _beat(self, *, closing: bool) -> None:
        with self._errors.at("bus/beat"):
            self._deliver(self._collapser.drain())  # first, so that the totals include them
            self._deliver([self.health(closing=closing)])

    def _guarded_turn(self) -> bool:
        """Run one turn; an error is counted and does not end the thread."""
        with self._errors.at("bus/turn"):
            if not self._prepared:
                self._prepared = True  # if it raises, report that once and do not retry
                self._prepared = self._prepare()
            return self._turn()
        return False

    def _turn(self) -> bool:
        """Process the readable records, at most one turn's worth.

        Return False if there was none.
        """
        events: list[Event] = []
        ring, taken = self._ring, 0
        self._at_work = bool(ring)
        while taken < TURN and ring and self._is_ready(ring[0]):
            taken += 1
            try:
                events += ring[0].events()
            except Exception as error:
                self._errors.record("bus", error)
                if self._errors.reraise:
                    raise
            ring.popleft()
        if events:
            self._deliver([*self._collapser.pass_on(events)])
        self._at_work = False
        with self._idle:
            self._idle.notify_all()
        return bool(taken)

    def _is_ready(self, record: Record) -> bool:
        """Return whether ``record`` is readable.

        If that raises, return True and let it fail in turn.
        """
        try:
            return record.ready()
        except Exception as error:  # noqa: BLE001 - no record may end the thread or block the ring
            self._errors.record("bus/ready", error)
            return True

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            self._totals.add(event)
            if isinstance(event, Finding):
                self._on_finding(event)
        for outbox in self._outboxes:
            outbox.put(events)


@dataclass(frozen=True, slots=True)
class _Ready:
    """An event that is complete already."""

    event: Event

    def ready(self) -> bool:
        return True

    def events(self) -> Iterable[Event]:
        return (self.event,)
