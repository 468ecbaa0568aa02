"""Work that is done on a thread beside the engine, one piece after the other."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread

from hicache_dbg.tracer.selfcheck import InternalErrors

__all__ = ["Beside", "Job"]


class Job:
    """A piece of work, done once at most; whoever wants to may wait for it."""

    __slots__ = ("_over", "_work")

    def __init__(self, work: Callable[[], object]) -> None:
        self._work: Callable[[], object] = work
        self._over = Lock()
        self._over.acquire()

    @property
    def over(self) -> bool:
        """Whether it was done, or will not be."""
        return not self._over.locked()

    def wait(self, seconds: float = -1.0) -> None:
        """Until it is over, or so many seconds; without a limit if they are negative."""
        if self._over.acquire(timeout=seconds):
            self._over.release()

    def run(self) -> None:
        """Do it."""
        try:
            self._work()
        finally:
            self.drop()

    def drop(self) -> None:
        """It will not be done, or not again: what it refers to is let go of."""
        self._work = _nothing
        self._over.release()


class Beside:
    """One thread, and what it has before it.

    ``start`` and ``stop`` are idempotent; what was given before ``stop`` is done when it returns, what
    is given afterwards is dropped.
    """

    def __init__(self, errors: InternalErrors) -> None:
        self._errors = errors
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._giving = Lock()

    def start(self) -> None:
        """Begin the thread."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="hicache-digest", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread, when it has done what it was given."""
        with self._giving:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join()

    def settle(self) -> None:
        """Wait until everything that was given so far is done."""
        last = Job(_nothing)
        self.give(last)
        last.wait()

    def give(self, job: Job) -> None:
        """Have it done in its turn."""
        with self._giving:
            if self._thread is not None:
                self._jobs.put(job)
                return
        job.drop()

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                with self._errors.at("handover/beside"):
                    job.run()
        finally:  # whatever ended it: nobody waits for what will not be done
            with self._giving:
                self._thread = None
                while not self._jobs.empty():
                    left = self._jobs.get()
                    if left is not None:
                        left.drop()


def _nothing() -> None:
    """Do nothing, in its turn."""
