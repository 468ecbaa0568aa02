"""A worker whose tasks may hang: it can tell, and closing it takes bounded time."""

import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

__all__ = ["WatchedWorker"]


class WatchedWorker:
    """Runs tasks in order on a daemon thread; ``late`` if one takes longer than ``patience_s``."""

    def __init__(self, name: str, patience_s: float) -> None:
        self.patience_s = patience_s
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._since = 0.0
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def late(self) -> bool:
        """Whether the current task has been running for more than ``patience_s`` seconds."""
        since = self._since
        return bool(since) and time.monotonic() - since > self.patience_s

    def submit(self, task: Callable[[], None]) -> None:
        """Queue ``task``."""
        self._tasks.put(task)

    def close(self, timeout: float) -> bool:
        """Finish the queue and end; return False if that takes more than ``timeout`` seconds."""
        self._tasks.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            self._since = time.monotonic()
            task()
            self._since = 0.0
