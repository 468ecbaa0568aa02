"""A queue and a thread per sink: a slow or dead sink harms only itself."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable

from hicache_dbg.tracer.events import Copied, Event
from hicache_dbg.tracer.sink import Pace, Sink, SinkError

__all__ = ["Outbox"]

BATCH = 512
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
#: Seconds a sink may take to close, in addition to the time for queued events.
LAST_ACT_S = 0.5
FULL_SPEED = Pace()


class Outbox:
    """Delivers events to one sink from a bounded queue, on its own thread.

    Copies and all other events wait in separate queues, so that a flood of debug events never
    crowds out a finding; delivery follows the order of arrival over both. A failing sink is retried
    after a pause that doubles up to five seconds. Losses are counted by reason. A sink's own pace
    applies only while nobody waits: draining and closing run at full speed.
    """

    def __init__(
        self, sink: Sink, capacity: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.sink = sink
        self.name = sink.name
        self.lost: Counter[str] = Counter()
        self.failures = 0
        self.delivered = 0
        #: Whether the sink took the last events that it was given.
        self.took_last = True
        self._clock = clock
        self._capacity = capacity
        self._copies: deque[tuple[int, Event]] = deque()
        self._others: deque[tuple[int, Event]] = deque()
        self._sequence = 0
        self._pending = 0
        self._waiting = 0
        self._enough = 1
        self._changed = threading.Condition()
        self._closing_at: float | None = None
        self._closed = False
        self._thread = threading.Thread(
            target=self._run, name=f"hicache-dbg-{sink.name}", daemon=True
        )
        self._thread.start()

    @property
    def _pace(self) -> Pace:
        return getattr(self.sink, "pace", FULL_SPEED)

    @property
    def _urgent(self) -> bool:
        """Whether somebody waits for the queued events."""
        return self._waiting > 0 or self._closing_at is not None

    @property
    def depth(self) -> int:
        """Number of queued events."""
        return len(self._copies) + len(self._others)

    def losses(self) -> dict[str, int]:
        """Return the number of lost events so far, by reason."""
        with self._changed:
            return dict(self.lost)

    def put(self, events: list[Event]) -> None:
        """Queue ``events``; drop those without room and count them as ``queue_full``."""
        with self._changed:
            if self._closed:
                self.took_last = False
                self.lost["closed"] += len(events)
                return
            for event in events:
                queue = self._copies if isinstance(event, Copied) else self._others
                if len(queue) >= self._capacity:
                    self.lost["queue_full"] += 1
                    continue
                self._sequence += 1
                queue.append((self._sequence, event))
            if self.depth >= self._enough:
                self._changed.notify_all()

    def drain(self, timeout: float) -> bool:
        """Wait until everything queued so far was tried; return False after ``timeout`` seconds."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: not self.depth and not self._pending, timeout)
            self._waiting -= 1
            return done

    def end(self, timeout: float) -> float:
        """Start closing: deliver queued events for at most ``timeout`` seconds.

        Return the deadline.
        """
        with self._changed:
            if self._closing_at is None:
                self._closing_at = self._clock() + timeout
                self._changed.notify_all()
            return self._closing_at

    def close(self, timeout: float) -> None:
        """Deliver queued events for at most ``timeout`` seconds, then stop.

        Count the rest as lost.
        """
        over = self.end(timeout) + LAST_ACT_S
        self._thread.join(max(0.0, over - self._clock()))
        with self._changed:
            self._closed = True
            # A batch that the sink still holds is lost too: nobody will wait for it any more.
            if left := self.depth + self._pending:
                self.took_last = False
                self.lost["closed"] += left
            self._pending = 0
            self._copies.clear()
            self._others.clear()

    def _run(self) -> None:
        pause = FIRST_PAUSE_S
        while (batch := self._take()) is not None:
            begun = time.thread_time()
            try:
                self.sink.emit(batch)
            except SinkError as error:
                self._failed(error.reason, error.lost)
            except Exception as error:  # noqa: BLE001 - a sink's own bug must not end its thread
                self._failed(type(error).__name__, len(batch))
            else:
                pause = FIRST_PAUSE_S
                self.took_last = True
                self._settle()
                if self._pace.rest:
                    self._rest(self._pace.rest * (time.thread_time() - begun))
                continue
            self._wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
        try:
            self.sink.close()
        except Exception:  # noqa: BLE001 - the thread ends anyway; the failure is counted
            self.failures += 1

    def _take(self) -> list[Event] | None:
        """Return the next batch in order of arrival, or None once closing is over."""
        with self._changed:
            self._changed.wait_for(lambda: self.depth or self._closing_at is not None)
            if self._pace.gather_s:
                self._gather(self._pace.gather_s)
            late = self._closing_at is not None and self._clock() >= self._closing_at
            if late or not self.depth:
                return None
            batch: list[Event] = []
            while self.depth and len(batch) < BATCH:
                copies, others = self._copies, self._others
                first = copies if copies and (not others or copies[0][0] < others[0][0]) else others
                batch.append(first.popleft()[1])
            self._pending = len(batch)
            return batch

    def _gather(self, seconds: float) -> None:
        """Wait until a whole batch is queued, for at most ``seconds``, unless somebody waits."""
        self._enough = min(BATCH, self._capacity)
        self._changed.wait_for(lambda: self.depth >= self._enough or self._urgent, seconds)
        self._enough = 1

    def _failed(self, reason: str, lost: int) -> None:
        with self._changed:
            lost = min(lost, self._pending)  # 0 if closing has already counted the batch
            self.failures += 1
            self.took_last = self.took_last and not lost
            self.lost[reason] += lost
            self._pending -= lost
        self._settle()

    def _settle(self) -> None:
        """Count what is still pending of the batch as delivered."""
        with self._changed:
            self.delivered += self._pending
            self._pending = 0
            self._changed.notify_all()

    def _rest(self, seconds: float) -> None:
        """Leave the interpreter to other threads, unless somebody waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._urgent, seconds)

    def _wait(self, seconds: float) -> None:
        """Back off, but wake at once for closing."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing_at is not None, seconds)
