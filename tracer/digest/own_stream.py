"""Streams that nobody else uses."""

import ctypes

import torch

from hicache_dbg.tracer.digest.driver import driven, driver

__all__ = ["own_stream"]

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


def own_stream(device: torch.device) -> int:
    """Create a stream that lives as long as the process, and return its raw handle.

    torch hands out a fixed set of 32 streams in turn, so one of its streams may be the copies' own.
    """
    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        driven(driver().cuStreamCreate, ctypes.byref(handle), _NON_BLOCKING)
    assert handle.value is not None  # noqa: S101 - the driver made it
    return handle.value
