"""XXH3-64 of memory at an address, while other threads run.

The xxhash package keeps the interpreter lock for input under 100 kB: a thread that digests tile after
tile beside the engine holds it up for milliseconds. The library inside the package is asked directly
there: a call of ctypes lets go of the lock.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from importlib import import_module

__all__ = ["WORTH_UNLOCKING", "unlocked"]

#: Fewer bytes are hashed sooner than the lock changes hands.
WORTH_UNLOCKING = 32 << 10
#: The one that looks at the processor first; builds without it have the other.
_NAMES = "XXH3_64bits_dispatch", "XXH3_64bits"


@cache
def unlocked() -> Callable[[int, int], int] | None:
    """XXH3-64 (seed 0) of so many bytes from an address; None where the library does not show it."""
    try:
        library = ctypes.CDLL(import_module("xxhash._xxhash").__file__)
    except (ImportError, OSError):
        return None
    for name in _NAMES:
        function = getattr(library, name, None)
        if function is not None:
            function.restype, function.argtypes = (
                ctypes.c_uint64,
                (ctypes.c_void_p, ctypes.c_size_t),
            )
            return function  # type: ignore[no-any-return]
    return None
