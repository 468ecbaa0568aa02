"""The number of currently idle cores."""

import os
from contextlib import suppress

__all__ = ["idle_cores"]

#: Linux: three load averages, runnable/total threads, the most recent process id.
_LOAD = "/proc/loadavg"


def idle_cores() -> int:
    """Return the cores beyond the runnable threads, the caller included; 0 if the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        descriptor = os.open(_LOAD, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, 256)
        finally:
            os.close(descriptor)
        return max(0, (os.cpu_count() or 1) - int(text.split()[3].split(b"/")[0]))
    return 0
