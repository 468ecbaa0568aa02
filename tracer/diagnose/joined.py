"""Join recordings of several processes of one run: what they disagree about."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.diagnose.database import Database
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.handed_over import settle
from hicache_dbg.tracer.diagnose.places import recordings_at
from hicache_dbg.tracer.events import Event, Finding

__all__ = ["joined"]


def joined(evidence: Evidence, files: Sequence[Path], say: Callable[[str], None]) -> list[Finding]:
    """Return what the processes that wrote ``files`` disagree about; nothing for one process.

    Tiles that decode received and prefill sent are counted in ``evidence`` as compared. Each file
    is read separately, because two processes may both be rank 0: one of prefill, one of decode.

    Raises:
        RecordingError: a file cannot be read.
    """
    recordings = [list(_rare(file, say)) for file in files]
    settle(evidence, recordings)
    evidence.joined = True
    return join(recordings)


def _rare(file: Path, say: Callable[[str], None]) -> Iterator[Event]:
    with Database(recordings_at([file], say)) as database:
        yield from (event for event in database.rare() if isinstance(event, Event))
