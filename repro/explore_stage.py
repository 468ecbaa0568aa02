"""Threads and simulated streams that take turns, one step at a time, in an order chosen by a seed.

The engine's own code runs on real threads, but only one at a time. Each runs until it waits for
something (a lock, a gate, an event, a task). Then the stage chooses who is next among all that can
run: threads, and streams whose next piece of work may run.
"""

from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from random import Random
from threading import Thread

from hicache_dbg.pools.streams import SimulatedStream, SimulatedStreams
from hicache_dbg.pools.worker import Worker

__all__ = ["Actor", "Stage", "StageCondition", "StageStreams", "StageWorker"]

Ready = Callable[[], bool]


class _Over(BaseException):
    """Unwinds a thread whose schedule is over; not an error."""


#: Turns given but not yet taken. A queue rather than a lock: Ctrl-C between two steps of the stage may
#: give one turn more than is taken, which a lock would refuse.
_Turns = SimpleQueue[None]


def _always() -> bool:
    return True


class Actor:
    """A thread that runs only when the stage lets it.

    ``until`` says when it can run; ``idle`` means that it may stay blocked forever without being
    stuck.
    """

    def __init__(self, name: str, body: Callable[[], None], stage: "Stage") -> None:
        self.name = name
        self.until: Ready = _always
        self.idle = False
        self.done = False
        self.go = _Turns()
        self.error: Exception | None = None
        self._body = body
        self._stage = stage
        self.thread = Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def ready(self) -> bool:
        """Return whether it could run now."""
        return not self.done and self.until()

    def step(self) -> None:
        """Let it run until it waits again; called by the stage."""
        self._stage.resume(self)

    def _run(self) -> None:
        self.go.get()
        try:
            if not self._stage.over:
                self._body()
        except _Over:
            pass
        except Exception as error:  # noqa: BLE001 - any error is a result of the schedule
            self.error = error
        self.done = True
        self._stage.hand_back()


class Stage:
    """Chooses who runs next, and runs one step at a time.

    Args:
        seed: chooses among all that could run.
        eagerness: probability of an unforced preemption, 0 to 1; at 0 everybody runs until they
            must wait.
    """

    def __init__(self, seed: int, eagerness: float) -> None:
        self.streams = StageStreams(self)
        self.over = False
        self.actors: list[Actor] = []
        self._random = Random(seed)  # noqa: S311 (an order to try, not a secret)
        self._eagerness = eagerness
        self._current: Actor | None = None
        self._handed_back = _Turns()

    @property
    def current(self) -> Actor | None:
        """The thread whose turn it is; None if the stage itself or a stream is running."""
        return self._current

    def act(self, name: str, body: Callable[[], None]) -> Actor:
        """Start one more thread, which runs ``body``."""
        actor = Actor(name, body, self)
        self.actors.append(actor)
        return actor

    def run(self) -> list[str]:
        """Run everybody until nobody can, or the schedule is over.

        Returns:
            The names of stuck actors: they wait for something that nobody will do.
        """
        last: Actor | SimulatedStream | None = None
        while not self.over:
            ready = [actor for actor in self.actors if actor.ready()]
            everybody: list[Actor | SimulatedStream] = [*ready, *self.streams.ready()]
            if not everybody:
                return [actor.name for actor in self.actors if not (actor.done or actor.idle)]
            chosen = next((one for one in everybody if one is last), everybody[0])
            if chosen is not last or self._random.random() < self._eagerness:
                chosen = self._random.choice(everybody)
            last = chosen
            chosen.step()
        return []

    def pause(self, until: Ready = _always) -> None:
        """Suspend the running thread until ``until`` holds; others may run first."""
        actor = self._current
        if actor is None:  # the stage itself waits: nobody else can run, so it must hold already
            if not until():
                raise RuntimeError("the stage waits for itself; let a thread of its own do that")
            return
        if self.over:
            raise _Over
        actor.until = until
        self.hand_back()
        actor.go.get()
        if self.over:
            raise _Over

    def resume(self, actor: Actor) -> None:
        """Give ``actor`` the turn, and wait until it pauses or ends."""
        self._current = actor
        actor.go.put(None)
        self._handed_back.get()
        self._current = None

    def hand_back(self) -> None:
        """Return the turn to the stage."""
        self._handed_back.put(None)

    def clear(self) -> None:
        """End every thread, wherever it is."""
        self.over = True
        for actor in self.actors:
            while not actor.done:  # while unwinding it may ask for locks, which are refused
                self.resume(actor)
            actor.thread.join()


class StageStreams(SimulatedStreams):
    """Simulated streams whose work is run by the stage, one piece per step."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage

    def ready(self) -> list[SimulatedStream]:
        """Return the streams whose next piece of work may run."""
        return [stream for stream in self._streams.values() if stream.ready()]

    def run_until(self, reached: Ready) -> None:
        """Let others run until ``reached``."""
        self._stage.pause(reached)


class StageCondition:
    """A reentrant lock and condition like :class:`threading.Condition`, for threads of a stage."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._owner: Actor | None = None
        self._depth = 0
        self._notified = 0

    def __enter__(self) -> None:
        if self._owner is None or self._owner is not self._stage.current:
            self._take(_always, 0)
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None

    def wait_for(self, holds: Ready, timeout: float | None = None) -> bool:
        """Release the lock until ``holds``; a stage has no time, so the timeout never expires."""
        del timeout
        depth, self._depth, self._owner = self._depth, 0, None
        self._take(holds, depth)
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock until the next :meth:`notify_all`."""
        before = self._notified
        return self.wait_for(lambda: self._notified != before, timeout)

    def notify_all(self) -> None:
        """Wake all waiters."""
        self._notified += 1

    def _take(self, holds: Ready, depth: int) -> None:
        self._stage.pause(lambda: self._owner is None and holds())
        self._owner, self._depth = self._stage.current, depth


class _Queue(deque[Callable[[], None] | None]):
    put = deque.append


class StageWorker(Worker):
    """A worker whose thread belongs to the stage."""

    def __init__(self, name: str, stage: Stage) -> None:
        self._stage = stage
        self._closed = False
        self._queue = _Queue()
        self._tasks = self._queue  # type: ignore[assignment]
        self._actor = stage.act(name, self._carry_out)
        self._thread = self._actor.thread

    def close(self) -> None:
        """Finish the queued tasks."""
        self._closed = True
        self._queue.append(None)
        self._stage.pause(lambda: self._actor.done)

    def _carry_out(self) -> None:
        while True:
            self._actor.idle = True
            self._stage.pause(lambda: bool(self._queue))
            self._actor.idle = False
            task = self._queue.popleft()
            if task is None:
                return
            task()
