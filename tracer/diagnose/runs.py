"""Group the recordings of a folder into runs: those written at the same time.

A folder keeps what all processes of a machine recorded, over many restarts. What was wrong before
the last restart is no evidence of what is wrong now.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hicache_dbg.exporters.recording_format import PACKED, read_header, run_of
from hicache_dbg.tracer.diagnose.places import files_at

__all__ = ["Run", "chosen_at", "runs_of"]

#: How much of the end of a file is searched for the last event's time.
TAIL_BYTES = 64 << 10
_TIME = re.compile(rb'"time_ns":(\d+)')


@dataclass(frozen=True, slots=True)
class Run:
    """Recordings whose times overlap (one process per rank, for example); ns since the epoch."""

    files: tuple[Path, ...]
    began_ns: int
    ended_ns: int

    def __str__(self) -> str:
        """Return its time span, in UTC."""
        began, ended = (
            datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
            for time_ns in (self.began_ns, self.ended_ns)
        )
        return f"{began} to {ended} UTC"


def runs_of(files: Sequence[Path]) -> list[Run]:
    """Return the runs that ``files`` belong to, oldest first.

    Raises:
        RecordingError: a file is not a recording.
        PartMissingError: one is compressed, and zstandard is not installed.
    """
    runs: list[Run] = []
    for one in sorted(_by_process(files), key=lambda run: run.began_ns):
        if runs and one.began_ns <= runs[-1].ended_ns:
            before = runs.pop()
            together = max(before.ended_ns, one.ended_ns)
            one = Run((*before.files, *one.files), before.began_ns, together)  # noqa: PLW2901
        runs.append(one)
    return runs


def chosen_at(places: Sequence[Path], say: Callable[[str], None], *, last: bool) -> list[Path]:
    """Return the recordings at ``places``, without duplicates; with ``last``, of the last run only.

    ``say`` gets one sentence for each place whose runs are read as one.

    Raises:
        RecordingError: a place holds none, or a file is not a recording.
        PartMissingError: one is compressed, and zstandard is not installed.
    """
    chosen: list[Path] = []
    for place in places:
        files = files_at([place])
        runs = runs_of(files)
        if last:
            files = [file for file in files if file in runs[-1].files]
        elif len(runs) > 1:
            say(
                f"{place}: {len(runs)} runs, one after the other, are read as one; --last reads that of "
                f"{runs[-1]} alone"
            )
        chosen += files
    return files_at(chosen)


def _by_process(files: Sequence[Path]) -> list[Run]:
    """Return each process's recording, which may have several parts."""
    parts: defaultdict[tuple[Path, str], list[Path]] = defaultdict(list)
    for file in files:
        parts[file.parent, run_of(file)].append(file)
    return [
        Run(tuple(own), min(map(_began_ns, own)), max(map(_ended_ns, own)))
        for own in parts.values()
    ]


def _began_ns(file: Path) -> int:
    return read_header(file).time_ns


def _ended_ns(file: Path) -> int:
    """Return the time of the last event, or else the file's modification time.

    The event's time is not found in a compressed part, or if the last operation's line is very
    long.
    """
    status = file.stat()
    times: list[int] = []
    if file.suffix != PACKED:
        with file.open("rb") as end:
            end.seek(max(0, status.st_size - TAIL_BYTES))
            times = [int(time) for time in _TIME.findall(end.read())]
    return max([_began_ns(file), *(times or [status.st_mtime_ns])])
