"""Threads and simulated streams that take turns, one step at a time, in an order that a seed chooses.

The engine's own code runs on real threads, but only one of them at a time: each goes on until it
waits for something (a lock, a gate, an event, a task), and then the stage chooses who is next among
all that could go on: threads, and streams whose next piece of work may run.
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
    """No error: it unwinds a thread whose schedule is over."""


#: Turns given and not yet taken. Ctrl-C may come between any two steps of the stage, so that one turn
#: more is given than is taken: a lock would refuse it.
_Turns = SimpleQueue[None]


def _always() -> bool:
    return True


class Actor:
    """A thread that runs only when the stage lets it.

    ``until`` says when it can go on; ``idle`` that nobody misses it if it never does.
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
        """Whether it could go on now."""
        return not self.done and self.until()

    def step(self) -> None:
        """Let it go on until it waits again; called by the stage."""
        self._stage.resume(self)

    def _run(self) -> None:
        self.go.get()
        try:
            if not self._stage.over:
                self._body()
        except _Over:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, the schedule shows it
            self.error = error
        self.done = True
        self._stage.hand_back()


class Stage:
    """Who runs next, and the step that it is.

    Args:
        seed: chooses among all who could go on.
        eagerness: how often the turn goes to somebody who need not have it, 0 to 1: at 0
            everybody goes on until they must wait.
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
        """The thread whose turn it is; None: it is the stage's own, or a stream's."""
        return self._current

    def act(self, name: str, body: Callable[[], None]) -> Actor:
        """One more thread, which runs ``body``."""
        actor = Actor(name, body, self)
        self.actors.append(actor)
        return actor

    def run(self) -> list[str]:
        """Let everybody go on until nobody can, or the schedule is over.

        Returns the names of those who are stuck: they wait for what nobody will do.
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
        """The running thread can go on once ``until`` holds; others may go first."""
        actor = self._current
        if actor is None:  # the stage itself: nobody else can run, so it must hold already
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
        """Give ``actor`` the turn, and take it back when it waits or has ended."""
        self._current = actor
        actor.go.put(None)
        self._handed_back.get()
        self._current = None

    def hand_back(self) -> None:
        """The turn is the stage's again."""
        self._handed_back.put(None)

    def clear(self) -> None:
        """End every thread, wherever it is."""
        self.over = True
        for actor in self.actors:
            while not actor.done:  # on its way out it may want locks, which it is refused
                self.resume(actor)
            actor.thread.join()


class StageStreams(SimulatedStreams):
    """Simulated streams whose pieces of work the stage carries out, one a step."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage

    def ready(self) -> list[SimulatedStream]:
        """Streams whose next piece of work may run."""
        return [stream for stream in self._streams.values() if stream.ready()]

    def run_until(self, reached: Ready) -> None:
        """Let others go on until ``reached``."""
        self._stage.pause(reached)


class StageCondition:
    """A re-entrant lock and condition as :class:`threading.Condition`, for threads of a stage."""

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
        """Let the lock go until ``holds``; time does not pass on a stage, so it never runs out."""
        del timeout
        depth, self._depth, self._owner = self._depth, 0, None
        self._take(holds, depth)
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Let the lock go until the next :meth:`notify_all`."""
        before = self._notified
        return self.wait_for(lambda: self._notified != before, timeout)

    def notify_all(self) -> None:
        """Wake all who wait."""
        self._notified += 1

    def _take(self, holds: Ready, depth: int) -> None:
        self._stage.pause(lambda: self._owner is None and holds())
        self._owner, self._depth = self._stage.current, depth


class _Queue(deque[Callable[[], None] | None]):
    put = deque.append


class StageWorker(Worker):
    """A worker whose thread is the stage's."""

    def __init__(self, name: str, stage: Stage) -> None:
        self._stage = stage
        self._closed = False
        self._queue = _Queue()
        self._tasks = self._queue  # type: ignore[assignment]
        self._actor = stage.act(name, self._carry_out)
        self._thread = self._actor.thread

    def close(self) -> None:
        """Finish what is queued."""
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
