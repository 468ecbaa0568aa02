"""How many cores have nothing to do just now."""

import os
from contextlib import suppress

__all__ = ["idle_cores"]

#: Linux: three averages, threads that run or want to of all threads, the latest process's number.
_LOAD = "/proc/loadavg"


def idle_cores() -> int:
    """Cores of the machine beyond its threads that want to run, the caller's among them; 0 where nobody says."""
    with suppress(OSError, ValueError, IndexError):
        descriptor = os.open(_LOAD, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, 256)
        finally:
            os.close(descriptor)
        return max(0, (os.cpu_count() or 1) - int(text.split()[3].split(b"/")[0]))
    return 0
