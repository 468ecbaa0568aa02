"""Batches of plain asynchronous copies for CUDA's copy engines.

torch has no binding for batched copies, so this calls the CUDA runtime that torch has loaded. From
CUDA 12.8 on it takes a whole batch per call, before that one copy per call.
"""

import ctypes
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hicache_dbg.pools.cuda_runtime import clear_error, runtime

__all__ = ["CopyEngineError", "copy_batch", "copy_one"]

Addresses = npt.NDArray[np.int64]

#: Copies per call. The engines start a batch when its call returns, so a short batch keeps them
#: busy while the next is prepared. With thousands per call, short copies take up to five times
#: as long.
BATCH = 256

_FROM_EITHER_SIDE = 4  # cudaMemcpyDefault: the runtime infers the direction from the addresses
_IN_STREAM_ORDER = 1  # cudaMemcpySrcAccessOrderStream
_BATCH_SINCE, _NO_FAIL_INDEX_SINCE = 12_080, 13_000


_COPY = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


class CopyEngineError(RuntimeError):
    """CUDA refused a copy; the message holds the error code."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Attributes(ctypes.Structure):
    """Mirror of ``cudaMemcpyAttributes``."""

    _fields_ = (
        ("order", ctypes.c_int),
        ("source_hint", _Location),
        ("target_hint", _Location),
        ("flags", ctypes.c_uint),
    )


def copy_one(target: int, source: int, size: int, stream: int) -> None:
    """Queue a copy of ``size`` bytes from ``source`` to ``target`` on ``stream``."""
    code = _runtime()[0].cudaMemcpyAsync(target, source, size, _FROM_EITHER_SIDE, stream)
    _require(code, 1)


def copy_batch(target: Addresses, source: Addresses, sizes: Addresses, stream: int) -> None:
    """Queue copies of ``sizes[i]`` bytes from ``source[i]`` to ``target[i]`` on ``stream``."""
    library, version = _runtime()
    if version < _BATCH_SINCE:
        for to, start, size in zip(target.tolist(), source.tolist(), sizes.tolist(), strict=True):
            copy_one(to, start, size, stream)
        return
    attributes = _Attributes(order=_IN_STREAM_ORDER)
    first = ctypes.c_size_t(0)
    failed = ctypes.c_size_t(0)
    tail = [] if version >= _NO_FAIL_INDEX_SINCE else [ctypes.byref(failed)]
    for begin in range(0, sizes.size, BATCH):
        batch = slice(begin, begin + BATCH)
        code = library.cudaMemcpyBatchAsync(
            _pointer(target[batch]),
            _pointer(source[batch]),
            _pointer(sizes[batch]),
            ctypes.c_size_t(sizes[batch].size),
            ctypes.byref(attributes),
            ctypes.byref(first),
            ctypes.c_size_t(1),
            *tail,
            ctypes.c_void_p(stream),
        )
        _require(code, sizes[batch].size)


def _pointer(array: Addresses) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _require(code: int, copies: int) -> None:
    if code:
        clear_error()
        raise CopyEngineError(f"CUDA refused a batch of {copies} copies with code {code}")


@cache
def _runtime() -> tuple[Any, int]:
    """Return the CUDA runtime and its version (13000 is 13.0)."""
    library = runtime()
    # With argtypes set once, plain ints need no conversion at each call.
    library.cudaMemcpyAsync.argtypes = _COPY
    version = ctypes.c_int(0)
    _require(library.cudaRuntimeGetVersion(ctypes.byref(version)), 0)
    return library, version.value
