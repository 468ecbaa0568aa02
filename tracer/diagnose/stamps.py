"""When a recording file begins and ends, on the wall clock and on its machine's own."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hicache_dbg.exporters.recording_format import PACKED, read_header

__all__ = ["Stamp", "ends_of", "steps"]

#: How much of the end of a file is searched for the last event's time.
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

    def corrected_ns(self, steps: dict[str, int]) -> int:
        """Return the wall clock's time as if it had always been set as it was last."""
        return self.boot_ns + steps[self.boot] if self.boot else self.wall_ns


def ends_of(file: Path) -> tuple[Stamp, Stamp, Stamp]:
    """Return the begin, the latest moment of which both clocks are known, and the end.

    The end is the time of the last event, or else the file's modification time. The event's time is
    not found in a compressed part, or if the last operation's line is very long.

    Raises:
        RecordingError: the file is not a recording.
        PartMissingError: it is compressed, and zstandard is not installed.
    """
    header, status = read_header(file), file.stat()
    began = Stamp(header.time_ns, header.boot_id, header.boot_ns)
    if file.suffix == PACKED:
        return began, began, began.later(status.st_mtime_ns)
    with file.open("rb") as end:
        end.seek(max(0, status.st_size - TAIL_BYTES))
        tail = end.read()
    healths = list(_HEALTH.finditer(tail)) if began.boot else []
    if not healths:
        return began, began, began.later(_last_ns(tail, status.st_mtime_ns))
    wall, boot = map(int, healths[-1].groups())
    known = Stamp(wall, began.boot, boot)
    return began, known, known.later(_last_ns(tail[healths[-1].start() :], wall), SILENCE_NS)


def _last_ns(lines: bytes, otherwise: int) -> int:
    return max(map(int, _TIME.findall(lines)), default=otherwise)


def steps(known: Iterable[Stamp]) -> dict[str, int]:
    """Return how far the wall clock is ahead of each boot's clock, as it was set last."""
    latest = sorted(known, key=lambda stamp: stamp.boot_ns)
    return {stamp.boot: stamp.wall_ns - stamp.boot_ns for stamp in latest}
