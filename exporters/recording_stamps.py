"""When a recording file begins and ends, on the wall clock and on its machine's own.

It is read from the file: its modification time changes whenever it is copied or touched.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hicache_dbg.exporters.encoding import LONGEST_LINE
from hicache_dbg.exporters.parts import PartMissingError
from hicache_dbg.exporters.recording_format import (
    PACKED,
    RecordingError,
    opened_recording,
    read_header,
)

__all__ = ["Stamp", "began", "ends_of", "oldest_first", "steps"]

#: How much of the end of a file is searched for the last event's time; more if it has none.
TAIL_BYTES = 64 << 10
#: A process that lives reports its health more often than this.
SILENCE_NS = 120 * 10**9
_TIME = re.compile(rb'"time_ns":(\d+)')
_HEALTH = re.compile(rb'"event":"health","time_ns":(\d+)[^\n]*"boot_ns":([1-9]\d*)')


@dataclass(frozen=True, slots=True)
class Stamp:
    """A moment: ns since the epoch, and since the machine's boot unless ``boot`` is empty.

    The wall clock may be set at any time. Clocks of two boots, or two machines, have only the wall
    clock in common.
    """

    wall_ns: int
    boot: str = ""
    boot_ns: int = 0

    def later(self, wall_ns: int, most_ns: float = float("inf")) -> "Stamp":
        """Return when the wall clock showed ``wall_ns``, at most ``most_ns`` later."""
        passed = int(min(max(0, wall_ns - self.wall_ns), most_ns))
        return Stamp(self.wall_ns + passed, self.boot, self.boot_ns + passed)

    def corrected_ns(self, steps: Mapping[str, int]) -> int:
        """Return the wall clock's time as if it had always been set as it was last."""
        return self.boot_ns + steps[self.boot] if self.boot else self.wall_ns


def began(file: Path) -> Stamp:
    """Return when a file was begun.

    Raises:
        RecordingError: the file is not a recording.
        PartMissingError: it is compressed, and zstandard is not installed.
    """
    header = read_header(file)
    return Stamp(header.time_ns, header.boot_id, header.boot_ns)


def ends_of(file: Path) -> tuple[Stamp, Stamp, Stamp]:
    """Return the begin, the latest moment of which both clocks are known, and the last event's time.

    A compressed file is read as a whole.

    Raises:
        RecordingError: the file is not a recording.
        PartMissingError: it is compressed, and zstandard is not installed.
    """
    start, tail = began(file), _tail(file)
    healths = list(_HEALTH.finditer(tail)) if start.boot else []
    if not healths:
        return start, start, start.later(_last_ns(tail, start.wall_ns))
    wall, boot = map(int, healths[-1].groups())
    known = Stamp(wall, start.boot, boot)
    return start, known, known.later(_last_ns(tail[healths[-1].start() :], wall), SILENCE_NS)


def oldest_first(runs: Mapping[str, Sequence[Path]]) -> list[str]:
    """Return the names of runs, the one whose last event is oldest first.

    ``runs`` maps each to its parts in order. A compressed part counts as ended when it began: it
    was closed when the next one began. Of a file that cannot be read, the modification time counts.
    """
    ends = {run: _end(parts[-1]) for run, parts in runs.items()}
    ahead = steps(known for known, _ in ends.values())
    return sorted(runs, key=lambda run: ends[run][1].corrected_ns(ahead))


def _end(file: Path) -> tuple[Stamp, Stamp]:
    """Return the latest moment of which both clocks are known, and the end."""
    try:
        if file.suffix != PACKED:
            return ends_of(file)[1:]
        known = began(file)
    except (RecordingError, PartMissingError, OSError):
        known = Stamp(_modified_ns(file))
    return known, known


def _modified_ns(file: Path) -> int:
    """Return when a file was modified; 0 if another process has removed it meanwhile."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _tail(file: Path) -> bytes:
    """Return the last bytes of a file, so many that they hold an event's time if the file does."""
    if file.suffix == PACKED:
        return _unpacked_tail(file)
    size = file.stat().st_size
    wanted = TAIL_BYTES
    with file.open("rb") as end:
        while True:
            end.seek(max(0, size - wanted))
            tail = end.read()
            if wanted >= min(size, LONGEST_LINE) or _TIME.search(tail):
                return tail
            wanted *= 4


def _unpacked_tail(file: Path) -> bytes:
    tail = b""
    try:
        with opened_recording(file) as packed:
            while some := packed.read(LONGEST_LINE):
                tail = tail[-LONGEST_LINE:] + some
    except RecordingError:  # its reader says so; what could be read stands
        pass
    return tail


def _last_ns(lines: bytes, otherwise: int) -> int:
    return max(map(int, _TIME.findall(lines)), default=otherwise)


def steps(known: Iterable[Stamp]) -> dict[str, int]:
    """Return how far the wall clock is ahead of each boot's clock, as it was set last."""
    latest = sorted(known, key=lambda stamp: stamp.boot_ns)
    return {stamp.boot: stamp.wall_ns - stamp.boot_ns for stamp in latest}
