"""The machine's clock since its boot. It counts through sleep, and nobody can set it."""

import time
from functools import cache
from pathlib import Path

__all__ = ["boot_id", "boot_ns"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


@cache
def boot_id() -> str:
    """Return the kernel's id of this boot, the journal's ``_BOOT_ID``; empty if it has none."""
    try:
        return _BOOT_ID.read_bytes().decode().strip().replace("-", "")
    except (OSError, ValueError):
        return ""


def boot_ns() -> int:
    """Return the time since the boot in nanoseconds; 0 if the system does not say."""
    return time.clock_gettime_ns(_CLOCK) if _CLOCK is not None else 0
