"""Reserve disk space for a whole file before it is written.

The kernel then allocates blocks once instead of for each 4 KiB of a buffered write, which would be
a fifth of the time that the write takes.
"""

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

__all__ = ["reserve"]

#: ``FALLOC_FL_KEEP_SIZE``: the file only grows as it is written.
_KEEP_SIZE = 1


def reserve(descriptor: int, nbytes: int) -> None:
    """Reserve ``nbytes`` for an open file; if that fails, the write reports why."""
    call = _fallocate()
    if call is not None:
        call(descriptor, _KEEP_SIZE, 0, nbytes)


@lru_cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """Return the Linux call; Python only has ``posix_fallocate``, which may write the whole file."""
    try:
        call: Any = ctypes.CDLL(None).fallocate
    except (AttributeError, OSError, TypeError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    found: Callable[[int, int, int, int], int] = call
    return found
