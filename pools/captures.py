"""Copies while another thread captures a CUDA graph.

A thread starts in the global capture mode. There, any call that a capture forbids (waiting for an
event, allocating memory) fails with CUDA error 900 while another thread captures, and invalidates
that capture. In the relaxed mode neither happens (CUDA driver API,
``cuThreadExchangeStreamCaptureMode``).
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch

__all__ = ["guard_for"]

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


def guard_for(device: torch.device) -> Callable[[], AbstractContextManager[None]]:
    """Return what copies of ``device`` run under: on CUDA the thread's mode is relaxed meanwhile."""
    on_cuda = device.type == "cuda" and torch.version.cuda is not None  # ROCm's are called cuda too
    return _relaxed if on_cuda else nullcontext


@contextmanager
def _relaxed() -> Iterator[None]:
    mode = ctypes.c_int(_RELAXED)
    _exchange(mode)
    try:
        yield
    finally:
        _exchange(mode)  # the thread may be the caller's, who has a mode of their own


def _exchange(mode: ctypes.c_int) -> None:
    """Set this thread's mode and put the former one into ``mode``."""
    code = _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    if code:
        raise RuntimeError(
            f"cuThreadExchangeStreamCaptureMode failed with CUDA error {code}: expected 0"
        )


@cache
def _driver() -> Any:
    # Keeps the interpreter's lock: the call sets a variable of this thread.
    return ctypes.PyDLL("libcuda.so.1")
