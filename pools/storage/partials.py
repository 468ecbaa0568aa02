"""Unfinished files, each locked by its writer.

A process id says nothing about a writer in another container. The kernel drops the lock with the
last process that has the file open, however that process ended.
"""

import fcntl
import os
import secrets
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["PARTIAL", "Partial", "remove_abandoned"]

PARTIAL = ".partial"
_LIFE = secrets.token_hex(8)
_numbers = count()  # process-wide: two stores may share a folder
#: A new file is not locked at first: a concurrent search for abandoned ones may remove it.
_TRIALS = 3


class Partial:
    """A new file next to ``place``; removed at the end of its block unless moved there.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        for trial in range(1, _TRIALS + 1):
            # Forked children count from the same number.
            self._name = f"{place}.{_LIFE}.{os.getpid()}.{next(_numbers)}{PARTIAL}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self.descriptor = os.open(self._name, flags, 0o644)
            if _is_ours(self.descriptor) or trial == _TRIALS:
                return
            os.close(self.descriptor)

    def move(self) -> None:
        """Rename the file to ``place``, atomically for every reader."""
        os.rename(self._name, self._place)  # noqa: PTH104 (paths as text: this runs once a page)
        self._name = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._name:
            with suppress(OSError):
                os.unlink(self._name)  # noqa: PTH108 (as above)
        os.close(self.descriptor)


def remove_abandoned(place: Path) -> bool:
    """Remove an unfinished file whose writer is gone; keep it if that cannot be told."""
    try:
        descriptor = os.open(place, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        place.unlink()
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _is_ours(descriptor: int) -> bool:
    """Lock a new file; return False if somebody took it for abandoned first."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # no locks on this file system, so nobody removes the file either
    return os.fstat(descriptor).st_nlink > 0
