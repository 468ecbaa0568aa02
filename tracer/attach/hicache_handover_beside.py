"""A thread beside the engine that runs jobs in order."""

import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread

from hicache_dbg.tracer.forks import after_fork
from hicache_dbg.tracer.selfcheck import InternalErrors

__all__ = ["Beside", "Job"]


#: How often a job that gives way looks again, in seconds.
POLL_S = 0.0005


class Job:
    """Work that is done at most once. Any thread may wait for it."""

    __slots__ = ("_over", "_wanted", "_work")

    def __init__(self, work: Callable[[], object]) -> None:
        self._work: Callable[[], object] = work
        self._wanted = False
        self._over = Lock()
        self._over.acquire()

    @property
    def over(self) -> bool:
        """Whether it was done or dropped."""
        return not self._over.locked()

    def give_way(self, busy: Callable[[], bool], seconds: float) -> None:
        """Sleep while ``busy``, for at most ``seconds``, or until it must hurry."""
        until = time.monotonic() + seconds
        while not self._wanted and busy() and time.monotonic() < until:
            time.sleep(POLL_S)

    def hurry(self) -> None:
        """Make it give way no longer."""
        self._wanted = True

    def wait(self, seconds: float = -1.0) -> None:
        """Block until it is over, for at most ``seconds``; without limit if negative."""
        self.hurry()
        if self._over.acquire(timeout=seconds):
            self._over.release()

    def run(self) -> None:
        """Do the work."""
        try:
            self._work()
        finally:
            self.drop()

    def drop(self) -> None:
        """Mark it as over, and release what it refers to."""
        self._work = _nothing
        self._over.release()


class Beside:
    """One thread and its queue of jobs.

    ``start`` and ``stop`` are idempotent. Jobs given before ``stop`` are done when it returns; later
    ones are dropped. A forked child has a thread of its own, and no part in its parent's jobs.
    """

    def __init__(self, errors: InternalErrors) -> None:
        self._errors = errors
        self._begin()
        after_fork(self._begin_in_child)

    def _begin(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._giving = Lock()

    def _begin_in_child(self) -> None:
        ran = self._thread is not None
        self._begin()
        if ran:
            self.start()

    def start(self) -> None:
        """Start the thread."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="hicache-digest", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread after the jobs it was given."""
        with self._giving:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join()

    def settle(self) -> None:
        """Block until all jobs given so far are done."""
        last = Job(_nothing)
        self.give(last)
        last.wait()

    def give(self, job: Job) -> None:
        """Queue a job."""
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
        finally:  # however it ended: nobody may wait for a job that is never done
            with self._giving:
                self._thread = None
                while not self._jobs.empty():
                    left = self._jobs.get()
                    if left is not None:
                        left.drop()


def _nothing() -> None:
    """Do nothing."""
