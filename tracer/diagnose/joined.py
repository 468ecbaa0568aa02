"""Join recordings of several processes of one run: what they disagree about."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from hicache_dbg.exporters.recording_format import RecordingError, run_of
from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.diagnose.database import Database
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.handed_over import settle
from hicache_dbg.tracer.diagnose.places import recordings_at
from hicache_dbg.tracer.diagnose.recordings import RecordingSource
from hicache_dbg.tracer.events import Event, Finding, Health

__all__ = ["joined", "processes_of"]


def processes_of(files: Sequence[Path], say: Callable[[str], None]) -> list[Iterator[Event]]:
    """Open ``files`` and return, for each process that wrote some, its rare events, not read yet.

    The processes are read separately, because two of them may both be rank 0: one of prefill, one
    of decode.

    Raises:
        RecordingError: a file cannot be read.
    """
    runs: dict[tuple[Path, str], list[Path]] = {}
    for file in files:
        runs.setdefault((file.parent, run_of(file)), []).append(file)
    processes: list[Iterator[Event]] = []
    for own in runs.values():
        try:
            source = recordings_at(own, say)
        except RecordingError:
            if any(file.exists() for file in own):
                raise
            continue  # its writer has removed all of it meanwhile, to make room
        processes.append(_rare(source))
    return processes


def joined(evidence: Evidence, processes: Sequence[Iterable[Event]]) -> list[Finding]:
    """Return what processes disagree about; nothing for one process.

    Tiles that decode received and prefill sent are counted in ``evidence`` as compared.
    """
    recordings = [list(events) for events in processes]
    settle(evidence, recordings)
    evidence.joined = True
    return join(recordings)


def _rare(source: RecordingSource) -> Iterator[Event]:
    """Yield the statements of a process, and that it lost events if parts were removed."""
    removed = max(source.parts) + 1 - len(source.parts)
    with Database(source) as database:
        for event in database.rare():
            if not isinstance(event, Event):
                continue
            if removed:
                lost = {"recording/removed": removed}
                yield Health(time_ns=event.time_ns, rank=event.rank, dropped=lost)
                removed = 0
            yield event
