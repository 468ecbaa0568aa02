"""Room on disk for the values of this process, reserved before they are written.

In multiprocess mode the library writes values through memory maps of files with holes. If the file
system has no block left when such a hole is written, the kernel kills the process with a bus error:
the host, not only this sink. So the blocks are reserved first, where running out is an error.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

__all__ = ["FIRST_SIZE", "Room", "fill", "spare"]

#: The files of a process with this sink, by the beginning of their names.
KINDS = ("counter", "histogram", "gauge_livesum", "gauge_livemax")
#: The size with which the library creates a file. It doubles a file that is full.
FIRST_SIZE = 1 << 16

_KEEP_SIZE = 1  # Linux: FALLOC_FL_KEEP_SIZE
#: The file system cannot reserve: nothing is gained, and nothing lost.
_UNABLE = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM})


class Room:
    """The reserved room of this process's files, twice as much as each has now.

    So a file can be doubled once between two calls of :meth:`ensure`, which is 64 KiB at least: more
    than all label sets of a pool take.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = 0
        self._sizes: dict[str, int] = {}

    def ensure(self) -> None:
        """Reserve what the files may need next; a forked child reserves for its own.

        Raises:
            OSError: the file system is full, or the folder is not writable.
        """
        pid = os.getpid()
        same = self._pid == pid
        for kind in KINDS:
            path = self._folder / f"{kind}_{pid}.db"
            if not path.exists():
                # As large as the parent's: the library copies every label set at once.
                self._create(path, self._sizes.get(kind, FIRST_SIZE))
            size = path.stat().st_size if path.exists() else 0
            if size and not (same and self._sizes.get(kind) == size):
                _reserve(path, 2 * size, _KEEP_SIZE)
                self._sizes[kind] = size
        self._pid = pid

    def _create(self, path: Path, size: int) -> None:
        """Create a file whole or not at all: the library fails to read an empty one."""
        unfinished = spare(self._folder, str(os.getpid()))
        try:
            fill(unfinished, size)
            # An empty one says that the file system cannot reserve: it is left to the library.
            if unfinished.stat().st_size:
                os.link(unfinished, path)
        except OSError as error:
            if error.errno not in _UNABLE | {errno.EEXIST}:  # the library was faster
                raise
        finally:
            unfinished.unlink(missing_ok=True)


def spare(folder: Path, pid: str) -> Path:
    """Return the name under which a process prepares a file; one that was killed may leave it."""
    return folder / f"hicache_dbg_{pid}.new"


def fill(path: Path, size: int) -> None:
    """Make a file of zeros without holes, or an empty one where the file system cannot reserve.

    Raises:
        OSError: there is no room for it.
    """
    path.touch()
    _reserve(path, size, 0)


def _reserve(path: Path, size: int, mode: int) -> None:
    file = os.open(path, os.O_RDWR)
    try:
        while _fallocate()(file, mode, 0, size) != 0:
            number = ctypes.get_errno()
            if number in _UNABLE:
                return
            if number != errno.EINTR:
                raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(file)


@cache
def _fallocate() -> Callable[..., int]:
    """Return Linux's call; the C library's ``posix_fallocate`` would write where it is not supported."""
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    found: Callable[..., int] = call
    return found
