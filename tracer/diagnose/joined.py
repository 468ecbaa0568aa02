"""Recordings of several processes of one run, joined: what they disagree about."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.diagnose.database import Database
from hicache_dbg.tracer.diagnose.places import recordings_at
from hicache_dbg.tracer.events import Event, Finding

__all__ = ["joined"]


def joined(files: Sequence[Path], say: Callable[[str], None]) -> list[Finding]:
    """What the processes that wrote ``files`` disagree about; of one process, nothing.

    Each file is read by itself: two processes may both be rank 0, one of prefill, one of decode.

    Raises:
        RecordingError: a file can't be read.
    """
    return join([list(_rare(file, say)) for file in files])


def _rare(file: Path, say: Callable[[str], None]) -> Iterator[Event]:
    with Database(recordings_at([file], say)) as database:
        yield from database.rare()
