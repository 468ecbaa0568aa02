"""Start the write-back of files as soon as they are written, on a background thread.

By itself the kernel would start half a minute later, with everything at once.
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

#: Most files that wait; each keeps a descriptor open, and a slow disk makes the call wait too.
MOST_FILES = 64
#: ``SYNC_FILE_RANGE_WRITE``: start writing dirty pages, without waiting.
_WRITE = 2


class WriteBack:
    """Starts the write-back of files on a best-effort basis; a no-op without the system call."""

    def __init__(self) -> None:
        self._begin = _sync_file_range()
        self._files: SimpleQueue[int] = SimpleQueue()
        self._lock = Lock()
        self._thread: Thread | None = None

    def begin(self, descriptor: int) -> None:
        """Make the kernel start writing an open file; the caller may close it right away."""
        if self._begin is None or self._files.qsize() >= MOST_FILES:
            return
        with suppress(OSError, RuntimeError):  # out of descriptors or of threads: skip it
            with self._lock:
                if self._thread is None:
                    thread = Thread(target=self._run, name="hicache-write-back", daemon=True)
                    thread.start()
                    self._thread = thread
            self._files.put(os.dup(descriptor))

    def _run(self) -> None:
        assert self._begin is not None  # noqa: S101 - checked before the thread starts
        while True:
            descriptor = self._files.get()
            self._begin(descriptor, 0, 0, _WRITE)
            os.close(descriptor)


@lru_cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Return the Linux call, which Python does not expose."""
    try:
        call: Any = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError, TypeError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    found: Callable[[int, int, int, int], int] = call
    return found
