"""The few CUDA driver calls made directly: each costs a microsecond of the host, not ten.

Most keep the interpreter's lock: they only enqueue something, and who gives the lock up while another
thread computes gets it back 5 ms later.
"""

import ctypes
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch

__all__ = ["DriverError", "beside_captures", "check", "driven", "driver"]

_POINTER = ctypes.c_void_p
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: this thread has not used the device yet


class DriverError(RuntimeError):
    """The CUDA driver refused a call; the message says which, and its error."""


#: What is called, and the types of its arguments.
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
    "cuStreamQuery": [_POINTER],
    "cuStreamSynchronize": [_POINTER],
    "cuStreamWaitEvent": [_POINTER, _POINTER, ctypes.c_uint],
    "cuThreadExchangeStreamCaptureMode": [_POINTER],
}
#: Those that may take long: other threads go on meanwhile.
_WAIT = {"cuEventSynchronize", "cuStreamSynchronize"}


@lru_cache(maxsize=1)
def driver() -> Any:
    """The calls of the CUDA driver library that are made here, by name.

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


def beside_captures() -> bool:
    """Let this thread ask for events while another one captures a CUDA graph.

    False if no device is in use yet: to be asked again.

    In the mode that threads begin with, a query from any of them invalidates a capture of the whole
    process, and the host's capture fails (CUDA Driver API, cuThreadExchangeStreamCaptureMode).
    """
    if not torch.cuda.is_initialized():
        return False
    if torch.version.cuda is not None:
        driven(driver().cuThreadExchangeStreamCaptureMode, ctypes.byref(ctypes.c_int(_RELAXED)))
    return True


def check(call: str, code: int) -> None:
    """Raise :class:`DriverError` if ``code``, the result of ``call``, is not success."""
    if code:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(code, ctypes.byref(text))
        reason = (text.value or b"unknown").decode()
        raise DriverError(f"{call} failed with CUDA error {code} ({reason}): expected 0")


def driven(call: Any, *arguments: Any) -> None:
    """Make a call of :func:`driver`; a thread that never used the device joins its context first.

    Raises:
        DriverError: If the driver refuses.
    """
    code = call(*arguments)
    if code:
        again(code, call, *arguments)


def again(code: int, call: Any, *arguments: Any) -> None:
    """What :func:`driven` does about a call that returned ``code``, for who makes it directly."""
    if code == _NO_CONTEXT:
        torch.cuda.set_device(torch.cuda.current_device())
        code = call(*arguments)
    check(call.__name__, code)
