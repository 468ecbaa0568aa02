"""Join recordings of several processes of one run: what they disagree about."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hicache_dbg.exporters.recording_format import read_header, run_of
from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.diagnose.database import Database
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.handed_over import settle
from hicache_dbg.tracer.diagnose.places import recordings_at
from hicache_dbg.tracer.events import Event, Finding, Health

__all__ = ["joined"]


def joined(evidence: Evidence, files: Sequence[Path], say: Callable[[str], None]) -> list[Finding]:
    """Return what the processes that wrote ``files`` disagree about; nothing for one process.

    Tiles that decode received and prefill sent are counted in ``evidence`` as compared. The files
    of each run are read separately, because two processes may both be rank 0: one of prefill, one
    of decode.

    Raises:
        RecordingError: a file cannot be read.
    """
    runs: dict[tuple[Path, str], list[Path]] = {}
    for file in files:
        runs.setdefault((file.parent, run_of(file)), []).append(file)
    recordings = [list(_rare(own, say)) for own in runs.values()]
    settle(evidence, recordings)
    evidence.joined = True
    return join(recordings)


def _rare(files: Sequence[Path], say: Callable[[str], None]) -> Iterator[Event]:
    """Yield the statements of a run, and that it lost events if parts of it were removed."""
    parts = {read_header(file).part for file in files}
    removed = max(parts) + 1 - len(parts)
    with Database(recordings_at(files, say)) as database:
        for event in database.rare():
            if not isinstance(event, Event):
                continue
            if removed:
                lost = {"recording/removed": removed}
                yield Health(time_ns=event.time_ns, rank=event.rank, dropped=lost)
                removed = 0
            yield event
