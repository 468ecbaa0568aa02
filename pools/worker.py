"""A thread that carries out one task after the other, in the order given."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

__all__ = ["Worker"]


class Worker:
    """Runs tasks on a thread of its own; a task reports its own errors and must not raise."""

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closed = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, task: Callable[[], None]) -> None:
        """Queue ``task``.

        Raises:
            RuntimeError: the worker was closed; nobody would ever carry the task out.
        """
        if self._closed:
            raise RuntimeError(
                f"worker {self._thread.name} was closed and takes no task; open a new controller"
            )
        self._tasks.put(task)

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        self._closed = True
        self._tasks.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
