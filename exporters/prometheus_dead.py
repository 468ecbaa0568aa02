"""Merge the files of dead processes in ``PROMETHEUS_MULTIPROC_DIR``: their counts stay.

Every process that ever counted leaves a file of each type, and a scrape reads them all. The counts
of dead processes are merged into one file per type. A pid does not tell whether a process is alive:
it means nothing in another container or pid namespace. So each process with this sink holds a lock
beside its files, and only files whose lock is free are touched.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from hicache_dbg.exporters.forking import in_children
from hicache_dbg.exporters.prometheus_merge import finish, merge
from hicache_dbg.exporters.prometheus_room import spare

__all__ = ["KINDS", "MOST_DEAD", "Claim", "is_claimed", "put_together", "undisturbed"]

#: Metric types that add up over processes.
KINDS = ("counter", "histogram", "summary")
#: Number of dead processes whose files are tolerated before they are merged.
MOST_DEAD = 8
MERGED = "hicachedbg"
#: Longest time to wait for another process's lock, and how often to poll it, in seconds.
LONGEST_WAIT_S, POLL_S = 2.0, 0.01
#: The lock files that this process holds. They must be told from one that a scrape looks at.
_ours: set[Path] = set()


class Claim:
    """Marks this process as alive for whoever merges files, until it ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = 0
        self._file = -1
        self.renew()
        in_children(self)

    def renew(self) -> None:
        """Claim the files of this process; a forked child claims its own.

        It never waits for a merge under way, which may be stopped: files without a claim are left
        alone.
        """
        pid = os.getpid()
        if self._pid == pid:
            return
        with _held(self._folder, fcntl.LOCK_SH, 0) as had:
            if had:  # no merge may see the lock file between its creation and its locking
                self._hold(pid)

    def _hold(self, pid: int) -> None:
        """Lock this process's file unless another session of it has done so, for as long."""
        lock = _lock(self._folder, str(pid))
        if lock not in _ours:
            file = os.open(lock, os.O_CREAT | os.O_RDWR, 0o600)
            # A scrape that asks whether this process is alive holds it for a moment.
            if not _had(file, fcntl.LOCK_EX, time.monotonic() + LONGEST_WAIT_S):
                os.close(file)
                return
            _ours.add(lock)
            self._file = file
        self._pid = pid

    def let_go(self) -> None:
        """In a forked child, close the lock: it is the parent's and must end with it."""
        if self._file >= 0:
            os.close(self._file)
        _ours.discard(_lock(self._folder, str(self._pid)))
        self._pid, self._file = 0, -1


def is_claimed(folder: Path, pid: str) -> bool | None:
    """Return whether a process is alive by its claim; None if it never made one."""
    lock = _lock(folder, pid)
    return not _is_free(lock) if lock.exists() else None


@contextmanager
def undisturbed(folder: Path) -> Iterator[None]:
    """Keep files from being merged while they are read.

    If a merge takes too long, or the folder allows no lock, they are read all the same.
    """
    with ExitStack() as held:
        with suppress(OSError):
            held.enter_context(_held(folder, fcntl.LOCK_SH, LONGEST_WAIT_S))
        yield


def put_together(folder: Path, most: int = MOST_DEAD) -> int:
    """Merge the files of dead processes if there are more than ``most``; return how many.

    A damaged file is left as it is. If another library scrapes at the same moment it may see a
    count missing or doubled; our scrape waits, and detects what a killed process left half merged.
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
            spare(folder, pid).unlink(missing_ok=True)
            _lock(folder, pid).unlink(missing_ok=True)
    return len(dead)


def _dead(folder: Path) -> list[str]:
    """Return the processes that made a claim and are gone."""
    return [path.stem.rpartition("_")[2] for path in _locks(folder) if _is_free(path)]


def _is_free(lock: Path) -> bool:
    try:
        file = os.open(lock, os.O_RDWR)
    except OSError:
        return False
    try:
        # Shared: two scrapes that ask at once must not take each other for the owner.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


@contextmanager
def _held(folder: Path, how: int, wait_s: float) -> Iterator[bool]:
    """Hold the folder's lock; yield False if others held it for longer than ``wait_s``.

    It yields False also where there are no locks, as on some network file systems: then no process
    has a claim, and no file is touched.
    """
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
        except OSError:
            return False
        else:
            return True


def _lock(folder: Path, pid: str) -> Path:
    return folder / f"hicache_dbg_{pid}.lock"


def _locks(folder: Path) -> list[Path]:
    return sorted(folder.glob("hicache_dbg_*.lock"))
