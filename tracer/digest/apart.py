"""A stream whose kernels stay off some of the device's multiprocessors, leaving them to copy kernels.

Copy kernels fill a whole multiprocessor each, and so find one free at once. Our own engine digests its
copies on this stream. Beside SGLang it was no better than any other stream (docs/sglang_gpu.md).
"""

import ctypes
from functools import cache
from typing import Any

import torch

__all__ = ["LEFT_ALONE", "apart_stream"]

#: Multiprocessors kept free of digests, out of an H200's 132.
LEFT_ALONE = 16
#: Devices with fewer multiprocessors than this are not partitioned.
_SMALLEST = 64

_SM_RESOURCE = 1  # CU_DEV_RESOURCE_TYPE_SM
_DEFAULT_STREAM = 1  # CU_GREEN_CTX_DEFAULT_STREAM, mandatory when creating a green context
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
#: Room for a CUdevResource: 144 bytes in CUDA 12 and 152 in CUDA 13.
_RESOURCE_BYTES = 1024


@cache
def apart_stream(device: torch.device) -> int | None:
    """Return the raw handle of the device's one such stream, which lives as long as the process.

    Returns:
        None if the driver lacks green contexts (added in 12.4) or the device is too small.
    """
    with torch.cuda.device(device):
        if torch.cuda.get_device_properties(device).multi_processor_count < _SMALLEST:
            return None
        try:
            return _made(torch.cuda.current_device())
        except (OSError, AttributeError, _RefusedError):
            return None


class _RefusedError(RuntimeError):
    """The driver does not support green contexts here."""


def _made(number: int) -> int:
    library: Any = ctypes.CDLL("libcuda.so.1")
    device, groups = ctypes.c_int(), ctypes.c_uint(1)
    every, first, rest = (ctypes.create_string_buffer(_RESOURCE_BYTES) for _ in range(3))
    description, context, stream = (ctypes.c_void_p() for _ in range(3))
    count = ctypes.byref(groups)
    for call, *arguments in (
        (library.cuDeviceGet, ctypes.byref(device), number),
        (library.cuDeviceGetDevResource, device, every, _SM_RESOURCE),
        (library.cuDevSmResourceSplitByCount, first, count, every, rest, 0, LEFT_ALONE),
        (library.cuDevResourceGenerateDesc, ctypes.byref(description), rest, 1),
        (library.cuGreenCtxCreate, ctypes.byref(context), description, device, _DEFAULT_STREAM),
        (library.cuGreenCtxStreamCreate, ctypes.byref(stream), context, _NON_BLOCKING, 0),
    ):
        if call(*arguments):
            raise _RefusedError
    assert stream.value is not None  # noqa: S101 - the driver made it
    return stream.value
