"""A folder that the recordings of many processes share: what they take together stays within a bound.

Beside the parts of a run lies a lock file, held as long as its process lives, into which is written that there was
a finding. Removed are whole runs, those that were not written to for longest first, and only if they have
a lock file that nobody holds and that is empty: never what a process still writes, what somebody may want to look
into, or what was brought here by hand.
"""

import fcntl
import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hicache_dbg.exporters.descriptors import Opened, opened, there
from hicache_dbg.exporters.recording_format import recordings_in, run_of
from hicache_dbg.tracer.events import Event, Finding

__all__ = ["Tenant", "prune"]

LOCK = ".lock"
FOUND = b"a finding was recorded: this run is not removed to make room\n"

_log = logging.getLogger(__name__)


class Tenant:
    """One run among others in ``folder``.

    Args:
        folder: where the recordings lie.
        most_bytes: what all of them may take together.

    A lock that cannot be had costs nothing but that the run is never removed. Trouble is said once.
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
        """A run goes on from here: this process's, or a forked child's, which lets go of its parent's."""
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
            hidden.rename(_lock(self._folder, run_id))  # held, and marked, before anybody sees it
        except OSError as error:
            self._say(error)

    def recorded(self, events: Sequence[Event]) -> None:
        """Mark the run if there is a finding among what it recorded."""
        if self._found or not any(isinstance(event, Finding) for event in events):
            return
        self._found = True
        if there(self._file, self._what) is not None:
            try:
                os.pwrite(self._file, FOUND, 0)
            except OSError as error:
                self._say(error)

    def make_room(self) -> None:
        """Remove what is oldest until all recordings are within the bound, as far as that can be."""
        try:
            for run_id in prune(self._folder, self._most_bytes):
                _log.warning("hicache-dbg: recording %s was removed to make room", run_id)
        except OSError as error:
            self._say(error)

    def close(self) -> None:
        """Let go of the run: from here on it may be removed, unless it has a finding."""
        if there(self._file, self._what) is not None:
            os.close(self._file)
        self._file = -1

    def _say(self, error: OSError) -> None:
        if not self._trouble:
            _log.warning("hicache-dbg: recordings in %s, said once: %s", self._folder, error)
        self._trouble = True


def prune(folder: Path, most_bytes: float) -> list[str]:
    """Remove runs until the recordings in ``folder`` take ``most_bytes`` at most; those that went."""
    runs: defaultdict[str, list[tuple[Path, os.stat_result]]] = defaultdict(list)
    for path in recordings_in(folder):
        try:
            runs[run_of(path)].append((path, path.stat()))
        except FileNotFoundError:  # another process was quicker
            continue
    sizes = {run: sum(found.st_size for _, found in parts) for run, parts in runs.items()}
    total, gone = sum(sizes.values()), []
    for run in sorted(runs, key=lambda run: max(found.st_mtime for _, found in runs[run])):
        if total <= most_bytes:
            break
        with _let_go(folder, run) as free:
            if free:
                for path, _ in runs[run]:
                    path.unlink(missing_ok=True)
                _lock(folder, run).unlink(missing_ok=True)
                total -= sizes[run]
                gone.append(run)
    return gone


@contextmanager
def _let_go(folder: Path, run: str) -> Iterator[bool]:
    """Whether a run's process has ended and left no finding; nobody else removes it meanwhile."""
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
