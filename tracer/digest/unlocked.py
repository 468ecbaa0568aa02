"""XXH3-64 of memory at an address, without holding the GIL.

The xxhash package keeps the GIL for inputs under 100 kB, so a thread that digests tile after tile
would stall the engine for milliseconds. Calling the C library inside the package through ctypes
releases it.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from importlib import import_module

__all__ = ["WORTH_UNLOCKING", "unlocked"]

#: Below this many bytes, hashing is faster than handing the GIL over.
WORTH_UNLOCKING = 32 << 10
#: The variant that dispatches on CPU features, then the plain one for builds without it.
_NAMES = "XXH3_64bits_dispatch", "XXH3_64bits"


@cache
def unlocked() -> Callable[[int, int], int] | None:
    """Return a function (address, size) -> XXH3-64 with seed 0; None if the library exports none."""
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
