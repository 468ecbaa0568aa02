"""The files that processes leave in ``PROMETHEUS_MULTIPROC_DIR``: their counts stay, the files do not.

Every process that ever counted leaves a file of each type, and a scrape reads them all. The counts of
processes that are no more are put together in one file a type. Whether a process is no more is not
asked of its number, which says nothing in another container or under a host's own numbering: each
process with this sink holds a lock beside its files, and only files whose lock was let go are touched.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hicache_dbg.exporters.forking import in_children
from hicache_dbg.exporters.prometheus_merge import finish, merge

__all__ = ["KINDS", "MOST_DEAD", "Claim", "is_claimed", "put_together", "undisturbed"]

#: What adds up over processes.
KINDS = ("counter", "histogram", "summary")
#: Processes whose files may lie about before they are put together.
MOST_DEAD = 8
MERGED = "hicachedbg"
#: A scrape waits no longer than this for files that are being put together.
LONGEST_WAIT_S, POLL_S = 2.0, 0.01


class Claim:
    """Says to whoever puts files together that this process is still there, until it ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = 0
        self._file = -1
        self.renew()
        in_children(self)

    def renew(self) -> None:
        """Lay claim, once a process: a forked child has files of its own.

        Nobody waits for who puts files together, and may be stopped in it: what has no claim yet is
        left alone.
        """
        pid = os.getpid()
        if self._pid == pid:
            return
        with _held(self._folder, fcntl.LOCK_SH, 0) as had:
            if had:  # a lock that is not held yet would pass for a dead one
                file = os.open(_lock(self._folder, str(pid)), os.O_CREAT | os.O_RDWR, 0o600)
                fcntl.flock(file, fcntl.LOCK_EX)
                self._pid, self._file = pid, file

    def let_go(self) -> None:
        """In a forked child: the lock is the parent's, and must end with it."""
        if self._file >= 0:
            os.close(self._file)
        self._pid, self._file = 0, -1


def is_claimed(folder: Path, pid: str) -> bool | None:
    """Whether a process is still there by its claim; None where it never laid one."""
    lock = _lock(folder, pid)
    return not _is_free(lock) if lock.exists() else None


@contextmanager
def undisturbed(folder: Path) -> Iterator[None]:
    """While files are read: nobody puts them together meanwhile, unless it takes him too long."""
    with _held(folder, fcntl.LOCK_SH, LONGEST_WAIT_S):
        yield


def put_together(folder: Path, most: int = MOST_DEAD) -> int:
    """Merge the files of dead processes if there are more than ``most``; how many went.

    A damaged file is left as it is. For another library's scrape at the same moment a count may be
    missing or double; ours waits, and knows what a killed process left half put together.
    """
    if len(_locks(folder)) <= most:
        return 0
    with _held(folder, fcntl.LOCK_EX, 0) as had:
        if had:
            finish(folder)
        dead = _dead(folder) if had else []
        if len(dead) <= most:
            return 0
        for kind in KINDS:
            paths = [folder / f"{kind}_{pid}.db" for pid in dead]
            merge([path for path in paths if path.exists()], folder / f"{kind}_{MERGED}.db")
        for pid in dead:
            for gauge in folder.glob(f"gauge_live*_{pid}.db"):
                gauge.unlink()
            _lock(folder, pid).unlink(missing_ok=True)
    return len(dead)


def _dead(folder: Path) -> list[str]:
    """The processes that had a claim and are no more."""
    return [path.stem.rpartition("_")[2] for path in _locks(folder) if _is_free(path)]


def _is_free(lock: Path) -> bool:
    try:
        file = os.open(lock, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


@contextmanager
def _held(folder: Path, how: int, wait_s: float) -> Iterator[bool]:
    """Hold the folder's lock; False where others had it for longer than ``wait_s``."""
    file = os.open(folder / "hicache_dbg.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        yield _had(file, how, time.monotonic() + wait_s)
    finally:
        os.close(file)


def _had(file: int, how: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        else:
            return True


def _lock(folder: Path, pid: str) -> Path:
    return folder / f"hicache_dbg_{pid}.lock"


def _locks(folder: Path) -> list[Path]:
    return sorted(folder.glob("hicache_dbg_*.lock"))
