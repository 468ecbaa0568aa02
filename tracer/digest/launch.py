"""Launching a compiled Triton kernel through the CUDA driver, without Triton's Python launcher.

Every argument of our kernels is a 64-bit integer, so a launch is one ``struct.pack_into`` and one
``cuLaunchKernel``: a few microseconds of the host where the launcher takes tens.
"""

import ctypes
import re
import struct
import threading
from functools import lru_cache
from typing import Any

__all__ = ["LaunchError", "Launcher", "is_capturing"]

_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: this thread has not used the device yet
_HANDLE = ctypes.c_void_p
_COUNT = ctypes.c_uint


class LaunchError(RuntimeError):
    """The CUDA driver refused a call; the message says which, and its error."""


class Launcher:
    """One loaded kernel whose run-time arguments are all 64-bit integers.

    Args:
        kernel: A Triton ``CompiledKernel``, whose handle is taken from it and which is kept.
        arguments: How many run-time arguments it has.

    Raises:
        LaunchError: If the kernel wants parameters or scratch memory that this cannot give it.
    """

    def __init__(self, kernel: Any, arguments: int) -> None:
        _ = kernel.run  # loads the binary onto the current device
        parameters = _parameters(kernel.asm["ptx"])
        scratch = getattr(kernel.metadata, "global_scratch_size", 0)
        if len(parameters) < arguments or set(parameters) != {"64"} or scratch:
            raise LaunchError(
                f"{kernel.metadata.name}: compiled to parameters of {parameters} bits and "
                f"{scratch} bytes of scratch: expected {arguments} of 64 bits or a few more, and none"
            )
        self._kernel = kernel
        # Parameters past ours are Triton's own scratch pointers; they stay null.
        self._values = ctypes.create_string_buffer(8 * len(parameters))
        at = ctypes.addressof(self._values)
        self._pointers = (_HANDLE * len(parameters))(*(at + 8 * i for i in range(len(parameters))))
        self._pack = struct.Struct(f"<{arguments}q").pack_into
        self._function = _HANDLE(kernel.function)
        self._threads = 32 * kernel.metadata.num_warps
        self._shared = kernel.metadata.shared
        self._lock = threading.Lock()
        self._launch = _driver().cuLaunchKernel

    def __call__(self, columns: int, rows: int, stream: int, *arguments: int) -> None:
        """Enqueue a grid of ``columns`` x ``rows`` programs on ``stream`` (a raw handle).

        Raises:
            LaunchError: If the driver refuses.
        """
        with self._lock:
            self._pack(self._values, 0, *arguments)
            code = self._launch(
                *(self._function, columns, rows, 1, self._threads, 1, 1),
                *(self._shared, stream, self._pointers, None),
            )
            if code == _NO_CONTEXT:
                _enter_context()
                code = self._launch(
                    *(self._function, columns, rows, 1, self._threads, 1, 1),
                    *(self._shared, stream, self._pointers, None),
                )
        if code:
            raise LaunchError(_described("cuLaunchKernel", code))


def is_capturing(stream: int) -> bool:
    """Whether what is enqueued on ``stream`` (a raw handle) goes into a CUDA graph now."""
    status = ctypes.c_int()
    code = _driver().cuStreamIsCapturing(stream, ctypes.byref(status))
    # The legacy default stream answers with an error while another stream captures.
    return bool(code or status.value)


def _parameters(ptx: str) -> list[str]:
    """Bits of each parameter of the (only) entry, in order."""
    entry = ptx[ptx.index(".entry") :]
    return re.findall(r"\.param \.[a-z](\d+)", entry[: entry.index("{")])


def _enter_context() -> None:
    import torch

    torch.cuda.set_device(torch.cuda.current_device())


def _described(call: str, code: int) -> str:
    text = ctypes.c_char_p()
    _driver().cuGetErrorString(code, ctypes.byref(text))
    reason = (text.value or b"unknown").decode()
    return f"{call} failed with CUDA error {code} ({reason}): expected 0"


@lru_cache(maxsize=1)
def _driver() -> Any:
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuLaunchKernel.argtypes = [
        *(_HANDLE, *(_COUNT,) * 6, _COUNT, _HANDLE, _HANDLE, _HANDLE),
    ]
    driver.cuStreamIsCapturing.argtypes = [_HANDLE, _HANDLE]
    return driver
