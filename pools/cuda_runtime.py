"""The CUDA runtime that torch has loaded, for calls that torch does not bind."""

import ctypes
from functools import cache
from typing import Any

import torch

__all__ = ["clear_error", "runtime"]


@cache
def runtime() -> Any:
    """Return the runtime's library."""
    major = str(torch.version.cuda).partition(".")[0]
    return ctypes.CDLL(f"libcudart.so.{major}")


def clear_error() -> None:
    """Clear this thread's last error: it was handled here, and torch's next call would raise it."""
    if torch.version.cuda is not None:
        runtime().cudaGetLastError()
