"""A thread that executes tasks one after another, in submission order."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

__all__ = ["Worker"]


class Worker:
    """Runs tasks on its own thread; a task handles its own errors and must not raise."""

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closed = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, task: Callable[[], None]) -> None:
        """Queue ``task``.

        Raises:
            RuntimeError: the worker was closed, so the task would never run.
        """
        if self._closed:
            raise RuntimeError(
                f"worker {self._thread.name} was closed and takes no task; open a new controller"
            )
        self._tasks.put(task)

    def close(self) -> None:
        """Finish the queued tasks and end the thread."""
        self._closed = True
        self._tasks.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
