"""The few CUDA driver calls made directly: each costs a microsecond of the host, not ten."""

import ctypes
from functools import lru_cache
from typing import Any

__all__ = ["DriverError", "check", "driver"]

_POINTER = ctypes.c_void_p


class DriverError(RuntimeError):
    """The CUDA driver refused a call; the message says which, and its error."""


@lru_cache(maxsize=1)
def driver() -> Any:
    """The CUDA driver library, with the argument types of what is called here.

    Raises:
        OSError: If the machine has no CUDA driver.
    """
    library = ctypes.CDLL("libcuda.so.1")
    library.cuLaunchKernelEx.argtypes = [_POINTER, _POINTER, _POINTER, _POINTER]
    library.cuEventRecord.argtypes = [_POINTER, _POINTER]
    library.cuMemcpyAsync.argtypes = [_POINTER, _POINTER, ctypes.c_size_t, _POINTER]
    library.cuStreamWaitEvent.argtypes = [_POINTER, _POINTER, ctypes.c_uint]
    return library


def check(call: str, code: int) -> None:
    """Raise :class:`DriverError` if ``code``, the result of ``call``, is not success."""
    if code:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(code, ctypes.byref(text))
        reason = (text.value or b"unknown").decode()
        raise DriverError(f"{call} failed with CUDA error {code} ({reason}): expected 0")
