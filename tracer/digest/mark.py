"""A reusable CUDA event without timing: a point in a stream's work that others can wait for."""

import ctypes
import weakref

from hicache_dbg.tracer.digest.driver import again, driven, driver

__all__ = ["Mark"]

_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_NOT_READY = 600  # CUDA_ERROR_NOT_READY


class Mark:
    """An event on the current device. Streams are given as raw handles."""

    def __init__(self) -> None:
        handle = ctypes.c_void_p()
        driven(driver().cuEventCreate, ctypes.byref(handle), _NO_TIMING)
        self._handle = handle.value
        self._record = driver().cuEventRecord
        self._wait = driver().cuStreamWaitEvent
        self._query = driver().cuEventQuery
        weakref.finalize(self, driver().cuEventDestroy_v2, self._handle).atexit = False

    def record(self, stream: int) -> None:
        """Mark everything enqueued on ``stream`` so far."""
        code = self._record(self._handle, stream)
        if code:
            again(code, self._record, self._handle, stream)

    def hold(self, stream: int) -> None:
        """Make later work on ``stream`` wait for the latest record, if there is one."""
        code = self._wait(stream, self._handle, 0)
        if code:
            again(code, self._wait, stream, self._handle, 0)

    def query(self) -> bool:
        """Return whether the work marked by the latest record is done; true if there is no record."""
        code: int = self._query(self._handle)
        if code == _NOT_READY:
            return False
        if code:
            again(code, self._query, self._handle)
        return True

    def synchronize(self) -> None:
        """Block until it is done."""
        driven(driver().cuEventSynchronize, self._handle)
