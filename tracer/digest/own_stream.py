"""Streams that are nobody else's."""

import ctypes

import torch

from hicache_dbg.tracer.digest.driver import driven, driver

__all__ = ["own_stream"]

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


def own_stream(device: torch.device) -> int:
    """A raw handle of a new stream, there as long as the process.

    torch has 32 and hands them out in turn: one of them may be the very stream of the copies.
    """
    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        driven(driver().cuStreamCreate, ctypes.byref(handle), _NON_BLOCKING)
    assert handle.value is not None  # noqa: S101 - the driver made it
    return handle.value
