"""Which recordings in a folder are of one run: those that were written at the same time.

A folder keeps what all processes of a machine recorded, one restart after the other; what was wrong
before the last one is no evidence of what is wrong now.
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

#: Of the end of a file, in which the last event's time is looked for.
TAIL_BYTES = 64 << 10
_TIME = re.compile(rb'"time_ns":(\d+)')


@dataclass(frozen=True, slots=True)
class Run:
    """Recordings whose times overlap, in nanoseconds since 1970: a process a rank, say."""

    files: tuple[Path, ...]
    began_ns: int
    ended_ns: int

    def __str__(self) -> str:
        """When it was, in UTC."""
        began, ended = (
            datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
            for time_ns in (self.began_ns, self.ended_ns)
        )
        return f"{began} to {ended} UTC"


def runs_of(files: Sequence[Path]) -> list[Run]:
    """The runs that ``files`` are of, the oldest first.

    Raises:
        RecordingError: a file is no recording.
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
    """The recordings at ``places``, each once; of each place the ``last`` run alone, if so asked.

    ``say`` gets one sentence for each place whose runs are read as one.

    Raises:
        RecordingError: a place holds none, or a file is none.
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
    """Each process's recording, which may have several parts."""
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
    """When the last event was; where that is not at hand, when the file was written.

    It is not at hand in a compressed part, and behind an operation on thousands of pages.
    """
    status = file.stat()
    times: list[int] = []
    if file.suffix != PACKED:
        with file.open("rb") as end:
            end.seek(max(0, status.st_size - TAIL_BYTES))
            times = [int(time) for time in _TIME.findall(end.read())]
    return max([_began_ns(file), *(times or [status.st_mtime_ns])])
