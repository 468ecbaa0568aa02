"""Files on their way to the disk from the moment they are written, by a thread that nobody waits for.

The kernel would begin by itself, half a minute later and with everything at once.
"""

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

__all__ = ["WriteBack"]

#: Of ``sync_file_range``: start to write what is not being written, and wait for nothing.
_WRITE = 2


class WriteBack:
    """Starts the write-back of files; it promises nothing, and without the system call does nothing."""

    def __init__(self) -> None:
        self._begin = _sync_file_range()
        self._files: SimpleQueue[int] = SimpleQueue()
        self._lock = Lock()
        self._thread: Thread | None = None

    def begin(self, descriptor: int) -> None:
        """Have the kernel start to write an open file, which the caller may close."""
        if self._begin is None:
            return
        with suppress(OSError):  # no descriptor is left: then not
            self._files.put(os.dup(descriptor))
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._run, name="hicache-write-back", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        assert self._begin is not None  # noqa: S101 - it is started only then
        while True:
            descriptor = self._files.get()
            self._begin(descriptor, 0, 0, _WRITE)
            os.close(descriptor)


@lru_cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Linux's call of this name, which Python does not have."""
    try:
        call: Any = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError, TypeError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    found: Callable[[int, int, int, int], int] = call
    return found
