"""A point in a stream's work, for others to wait for: an event that is made once and used again."""

import ctypes
import weakref

from hicache_dbg.tracer.digest.driver import again, driven, driver

__all__ = ["Mark"]

_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_NOT_READY = 600  # CUDA_ERROR_NOT_READY


class Mark:
    """An event of the current device. Streams are raw handles."""

    def __init__(self) -> None:
        handle = ctypes.c_void_p()
        driven(driver().cuEventCreate, ctypes.byref(handle), _NO_TIMING)
        self._handle = handle.value
        self._record = driver().cuEventRecord
        self._wait = driver().cuStreamWaitEvent
        self._query = driver().cuEventQuery
        weakref.finalize(self, driver().cuEventDestroy_v2, self._handle).atexit = False

    def record(self, stream: int) -> None:
        """Stand for all that ``stream`` was given so far."""
        code = self._record(self._handle, stream)
        if code:
            again(code, self._record, self._handle, stream)

    def hold(self, stream: int) -> None:
        """What ``stream`` is given from now on waits for the latest record, if there is one."""
        code = self._wait(stream, self._handle, 0)
        if code:
            again(code, self._wait, stream, self._handle, 0)

    def query(self) -> bool:
        """Whether what the latest record stands for is done; true if there is none."""
        code: int = self._query(self._handle)
        if code == _NOT_READY:
            return False
        if code:
            again(code, self._query, self._handle)
        return True

    def synchronize(self) -> None:
        """Block until it is."""
        driven(driver().cuEventSynchronize, self._handle)
