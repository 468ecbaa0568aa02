"""A folder shared by the recordings of many processes, kept within a size limit.

Beside the parts of a run lies a lock file, held as long as its process lives and marked if the run
has a finding. Whole runs are removed, the one whose last event is oldest first, and only if their lock file
exists, is free and unmarked. So a run is never removed while it is being written, if somebody may
want to examine it, or if it was copied here by hand.
"""

import fcntl
import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hicache_dbg.exporters.descriptors import Opened, opened, there
from hicache_dbg.exporters.recording_format import files_of_recordings, run_of
from hicache_dbg.exporters.recording_stamps import oldest_first
from hicache_dbg.tracer.events import Event, Finding

__all__ = ["Tenant", "prune"]

LOCK = ".lock"
FOUND = b"a finding was recorded: this run is not removed to make room\n"

_log = logging.getLogger(__name__)


class Tenant:
    """One run among others in ``folder``.

    If its lock cannot be created, the only consequence is that the run is never removed. Trouble is
    logged once.

    Args:
        folder: where the recordings are.
        most_bytes: limit for all of them together.
    """

    def __init__(self, folder: Path, most_bytes: float) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._run_id = ""
        self._found = False
        self._file = -1
        self._what: Opened = (0, 0)
        self._trouble = False

    def begin(self, run_id: str) -> None:
        """Continue as ``run_id``: this process's run, or that of a forked child.

        A child drops its parent's lock.
        """
        self.close()
        self._found = self._found and run_id == self._run_id
        self._run_id = run_id
        hidden = self._folder / f".{run_id}{LOCK}"
        try:
            self._file = os.open(hidden, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC, 0o600)
            self._what = opened(self._file)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            if self._found:
                os.pwrite(self._file, FOUND, 0)
            hidden.rename(_lock(self._folder, run_id))  # locked and marked before it is visible
        except OSError as error:
            self._say(error)

    def recorded(self, events: Sequence[Event]) -> None:
        """Mark the run if there is a finding among the recorded events."""
        if self._found or not any(isinstance(event, Finding) for event in events):
            return
        self._found = True
        if there(self._file, self._what) is not None:
            try:
                os.pwrite(self._file, FOUND, 0)
            except OSError as error:
                self._say(error)

    def make_room(self) -> None:
        """Remove the oldest runs until all recordings are within the limit, as far as possible."""
        try:
            for run_id in prune(self._folder, self._most_bytes):
                _log.warning("hicache-dbg: recording %s was removed to make room", run_id)
        except OSError as error:
            self._say(error)

    def close(self) -> None:
        """Release the run: from here on it may be removed, unless it has a finding."""
        if there(self._file, self._what) is not None:
            os.close(self._file)
        self._file = -1

    def _say(self, error: OSError) -> None:
        if not self._trouble:
            _log.warning("hicache-dbg: recordings in %s, said once: %s", self._folder, error)
        self._trouble = True


def prune(folder: Path, most_bytes: float) -> list[str]:
    """Remove runs until the recordings in ``folder`` take at most ``most_bytes``.

    Returns:
        The ids of the removed runs.
    """
    runs: defaultdict[str, list[tuple[Path, os.stat_result]]] = defaultdict(list)
    for path in files_of_recordings(folder):
        try:
            runs[run_of(path)].append((path, path.stat()))
        except FileNotFoundError:  # another process removed it meanwhile
            continue
    sizes = {run: sum(found.st_size for _, found in parts) for run, parts in runs.items()}
    total, gone = sum(sizes.values()), list[str]()
    if total <= most_bytes:
        return gone
    may_go = {
        run: [path for path, _ in parts]
        for run, parts in runs.items()
        if _lock(folder, run).exists()
    }
    for run in oldest_first(may_go):
        if total <= most_bytes:
            break
        with _let_go(folder, run) as free:
            if free:
                for path in may_go[run]:
                    path.unlink(missing_ok=True)
                _lock(folder, run).unlink(missing_ok=True)
                total -= sizes[run]
                gone.append(run)
    return gone


@contextmanager
def _let_go(folder: Path, run: str) -> Iterator[bool]:
    """Yield whether a run has ended without a finding; hold its lock so nobody else removes it."""
    try:
        file = os.open(_lock(folder, run), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = os.fstat(file).st_size == 0
    except OSError:
        free = False
    try:
        yield free
    finally:
        os.close(file)


def _lock(folder: Path, run: str) -> Path:
    return folder / f"{run}{LOCK}"
