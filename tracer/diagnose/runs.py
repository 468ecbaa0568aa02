"""Group the recordings of a folder into runs: those written at the same time.

A folder keeps what all processes of a machine recorded, over many restarts. What was wrong before
the last restart is no evidence of what is wrong now. If the wall clock was set in between, the
machine's own clock tells the order.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hicache_dbg.exporters.recording_format import RecordingError, begun, read_header, run_of
from hicache_dbg.exporters.recording_stamps import Stamp, began, ends_of, steps
from hicache_dbg.tracer.diagnose.places import files_at
from hicache_dbg.tracer.words import counted

__all__ = ["Run", "chosen_at", "runs_of"]


@dataclass(frozen=True, slots=True)
class Run:
    """Recordings whose times overlap (one process per rank, for example); ns since the epoch.

    Times are those of a wall clock that always stood as it was set last.
    """

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
        if place.is_dir():
            files = _begun(files, place, say)
        else:
            read_header(place)
        runs = runs_of(files)
        if not runs:
            raise RecordingError(f"{place}: its writer has removed all recordings meanwhile")
        read = {file for run in (runs[-1:] if last else runs) for file in run.files}
        files = [file for file in files if file in read]
        if not last and len(runs) > 1:
            say(
                f"{place}: {len(runs)} runs, one after the other, are read as one; --last reads that of "
                f"{runs[-1]} alone"
            )
        chosen += files
    return files_at(chosen)


def _begun(files: list[Path], folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Leave out empty files, unless there are no others: one that lost its contents hides no run."""
    whole = [file for file in files if begun(file)]
    if not whole or len(whole) == len(files):
        return files
    say(
        f"{folder}: {counted(len(files) - len(whole), 'empty recording')} left out: the writer was stopped "
        "before it began, or the machine was"
    )
    return whole


def _by_process(files: Sequence[Path]) -> list[Run]:
    """Return each process's recording, which may have several parts."""
    parts: defaultdict[tuple[Path, str], dict[Path, Stamp]] = defaultdict(dict)
    for file in files:
        with _may_go(file):
            parts[file.parent, run_of(file)][file] = began(file)
    ends: dict[tuple[Path, str], tuple[Stamp, Stamp]] = {}
    for run, own in parts.items():
        last = max(own, key=lambda file: (own[file].boot_ns, own[file].wall_ns))
        ends[run] = own[last], own[last]
        with _may_go(last):
            ends[run] = ends_of(last)[1:]
    ahead = steps(
        [
            *(stamp for own in parts.values() for stamp in own.values()),
            *(known for known, _ in ends.values()),
        ]
    )
    return [
        Run(
            tuple(own),
            min(stamp.corrected_ns(ahead) for stamp in own.values()),
            ends[run][1].corrected_ns(ahead),
        )
        for run, own in parts.items()
    ]


@contextmanager
def _may_go(file: Path) -> Iterator[None]:
    """Pass over a file that its writer has removed meanwhile, to make room."""
    try:
        yield
    except (FileNotFoundError, RecordingError):
        if file.exists():
            raise
