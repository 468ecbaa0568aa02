"""Direct calls into the CUDA driver: about 1 us of host time each, where torch's wrappers take 10 us.

Calls that only enqueue work keep the GIL: a thread that releases it while another one computes waits
up to 5 ms to get it back.
"""

import ctypes
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch

__all__ = ["DriverError", "addresses", "beside_captures", "check", "driven", "driver"]

_POINTER = ctypes.c_void_p
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: this thread has not used the device yet


class DriverError(RuntimeError):
    """The CUDA driver refused a call; the message says which, and its error."""


#: The calls made, and their argument types.
_CALLS: dict[str, list[Any]] = {
    "cuEventCreate": [_POINTER, ctypes.c_uint],
    "cuEventDestroy_v2": [_POINTER],
    "cuEventQuery": [_POINTER],
    "cuEventRecord": [_POINTER, _POINTER],
    "cuEventSynchronize": [_POINTER],
    "cuGetErrorString": [ctypes.c_int, _POINTER],
    "cuLaunchKernelEx": [_POINTER, _POINTER, _POINTER, _POINTER],
    "cuMemcpyAsync": [_POINTER, _POINTER, ctypes.c_size_t, _POINTER],
    "cuStreamCreate": [_POINTER, ctypes.c_uint],
    "cuStreamIsCapturing": [_POINTER, _POINTER],
    "cuStreamQuery": [_POINTER],
    "cuStreamSynchronize": [_POINTER],
    "cuStreamWaitEvent": [_POINTER, _POINTER, ctypes.c_uint],
    "cuThreadExchangeStreamCaptureMode": [_POINTER],
}
#: Calls that may block; they release the GIL.
_WAIT = {"cuEventSynchronize", "cuStreamSynchronize"}


@lru_cache(maxsize=1)
def driver() -> Any:
    """Return the driver's calls, by name.

    Raises:
        OSError: If the machine has no CUDA driver.
    """
    keeping, waiting = ctypes.PyDLL("libcuda.so.1"), ctypes.CDLL("libcuda.so.1")
    calls = SimpleNamespace()
    for name, types in _CALLS.items():
        call = getattr(waiting if name in _WAIT else keeping, name)
        call.argtypes = types
        setattr(calls, name, call)
    return calls


def addresses(*calls: str) -> tuple[int, ...]:
    """Return the addresses of some of :func:`driver`'s calls."""
    found = (ctypes.cast(getattr(driver(), call), _POINTER).value for call in calls)
    return tuple(address or 0 for address in found)


def beside_captures() -> bool:
    """Let this thread query events while another one captures a CUDA graph.

    Threads start in a mode in which such a query invalidates the capture, and the host's capture fails
    (CUDA Driver API, cuThreadExchangeStreamCaptureMode).

    Returns:
        False if no device is in use yet; call again later.
    """
    if not torch.cuda.is_initialized():
        return False
    if torch.version.cuda is not None:
        driven(driver().cuThreadExchangeStreamCaptureMode, ctypes.byref(ctypes.c_int(_RELAXED)))
    return True


def check(call: str, code: int) -> None:
    """Raise :class:`DriverError` unless ``code``, the result of ``call``, is success."""
    if code:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(code, ctypes.byref(text))
        reason = (text.value or b"unknown").decode()
        raise DriverError(f"{call} failed with CUDA error {code} ({reason}): expected 0")


def driven(call: Any, *arguments: Any) -> None:
    """Make one of :func:`driver`'s calls, entering the device's context on this thread's first one.

    Raises:
        DriverError: If the driver refuses.
    """
    code = call(*arguments)
    if code:
        again(code, call, *arguments)


def again(code: int, call: Any, *arguments: Any) -> None:
    """Handle the ``code`` of a failed call as :func:`driven` does, for callers that bypass it."""
    if code == _NO_CONTEXT:
        torch.cuda.set_device(torch.cuda.current_device())
        code = call(*arguments)
    check(call.__name__, code)
