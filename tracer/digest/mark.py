"""A point in a stream's work, for others to wait for: an event that is made once and used again."""

import ctypes
import weakref

from hicache_dbg.tracer.digest.driver import driven, driver

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
        weakref.finalize(self, driver().cuEventDestroy_v2, self._handle).atexit = False

    def record(self, stream: int) -> None:
        """Stand for all that ``stream`` was given so far."""
        driven(self._record, self._handle, stream)

    def hold(self, stream: int) -> None:
        """What ``stream`` is given from now on waits for the latest record, if there is one."""
        driven(self._wait, stream, self._handle, 0)

    def query(self) -> bool:
        """Whether what the latest record stands for is done; true if there is none."""
        code: int = driver().cuEventQuery(self._handle)
        if code not in {0, _NOT_READY}:
            driven(driver().cuEventQuery, self._handle)
        return code != _NOT_READY

    def synchronize(self) -> None:
        """Block until it is."""
        driven(driver().cuEventSynchronize, self._handle)
