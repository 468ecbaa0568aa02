"""A run's events on disk: append-only JSON lines that survive a kill.

The first line is a header with the schema version, every further line one event. Each batch is one
write to an unbuffered descriptor, so what was written is with the kernel and outlives the process.
A line cut short by a kill or a full disk is skipped by the reader, with a message.
"""

import errno
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hicache_dbg.exporters.encoding import encoded_lines
from hicache_dbg.exporters.recording_folder import Tenant
from hicache_dbg.exporters.recording_format import FORMAT, SUFFIX, Header, RecordingError
from hicache_dbg.exporters.recording_part import Part, compressor, pack
from hicache_dbg.tracer.boot import boot_id, boot_ns
from hicache_dbg.tracer.events import SCHEMA_VERSION, Event, Finding, Started
from hicache_dbg.tracer.sink import SinkError
from hicache_dbg.tracer.words import counted

__all__ = ["RecordingError", "RecordingSink", "Rotation"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rotation:
    """How a long run is split into parts, each readable on its own.

    Args:
        part_bytes: a part that has reached this size is closed and the next one started.
        keep: most parts to keep, the current one included; 0 keeps all. Parts without a finding are
            removed first, oldest first; then those with one, of which the first is kept longest.
        compress: closed parts become ``.jsonl.zst``; needs the ``zstandard`` package.
    """

    part_bytes: int
    keep: int = 0
    compress: bool = False


class RecordingSink:
    """Appends events to ``directory/run_id.jsonl``, a new file that only its owner can read.

    With a rotation the files are ``run_id.0000.jsonl`` and so on. Each starts with the start
    records, so that later parts can be judged without the first. A failing rotation loses no event:
    the current part continues, and the log says why. A forked child writes its own recording,
    ``run_id-childPID``. If the file was removed, or its descriptor closed along with all others of
    the process, a new file is started with the start records. A ``tenant`` shares the folder with
    other runs and makes room there for each new part.

    Raises:
        RecordingError: the folder is missing or not writable, the run's file exists already, or
            compression is requested but not installed.
    """

    name = "recording"

    def __init__(
        self,
        directory: Path,
        run_id: str,
        *,
        rotation: Rotation | None = None,
        tenant: Tenant | None = None,
    ) -> None:
        self._directory = directory
        self._run_id = run_id
        self._pid = os.getpid()
        self._rotation = rotation
        self._compress = compressor() if rotation is not None and rotation.compress else None
        self._started: dict[int, Started] = {}
        self._part = self._begin(0)
        self._begun = 1
        self._found = False  # whether the current part has a finding
        self._clean: list[Path] = []
        self._accusing: list[Path] = []
        self._trouble = False
        self._tenant = tenant
        self._made_room = False
        if tenant is not None:
            tenant.begin(run_id)

    @property
    def path(self) -> Path:
        """The file being written."""
        return self._part.path

    def emit(self, events: Sequence[Event]) -> None:
        """Append ``events`` in one write; on a full disk, incomplete lines are lost."""
        if self._pid != os.getpid() or self._part.is_gone:
            self._begin_anew(len(events))
        if self._rotation is not None and self._part.size >= self._rotation.part_bytes:
            self._rotate(self._rotation)
        self._started |= {event.rank: event for event in events if isinstance(event, Started)}
        self._found = self._found or any(isinstance(event, Finding) for event in events)
        whole, failure = self._part.append(encoded_lines(events))
        if failure is not None:
            lost = len(events) - whole
            raise SinkError(
                f"recording {self.path}: {failure.strerror}; {lost} of {len(events)} events lost",
                reason=errno.errorcode.get(failure.errno or 0, "os_error").lower(),
                lost=lost,
            ) from failure
        if self._tenant is not None:
            self._share(self._tenant, events)

    def close(self) -> None:
        """Close the file; every line is already with the kernel."""
        self._part.close()
        if self._tenant is not None:
            self._tenant.close()

    def _share(self, tenant: Tenant, events: Sequence[Event]) -> None:
        """Mark findings and make room, on the sink's own thread: removing files takes time."""
        tenant.recorded(events)
        if not self._made_room:
            self._made_room = True
            tenant.make_room()

    def _begin_anew(self, waiting: int) -> None:
        """Start a new file after a fork, or after the old file was removed."""
        before, pid = self._run_id, os.getpid()
        if self._pid != pid:
            self._run_id = f"{before}-child{pid}"
            self._clean, self._accusing, self._begun = [], [], 0
        number = self._begun if self._rotation is not None else 0
        try:
            lost_or_parents, self._part = self._part, self._begin(number)
        except RecordingError as error:
            self._run_id = before
            raise SinkError(
                f"{error}; {counted(waiting, 'event')} lost", reason="refused", lost=waiting
            ) from error
        lost_or_parents.close()
        if self._tenant is not None:
            self._tenant.begin(self._run_id)
        self._pid, self._begun, self._made_room, self._found = pid, number + 1, False, False

    def _begin(self, number: int) -> Part:
        """Open a part and write its head."""
        header = Header(
            format=FORMAT,
            schema=SCHEMA_VERSION,
            run_id=self._run_id,
            time_ns=time.time_ns(),
            part=number,
            boot_id=boot_id(),
            boot_ns=boot_ns(),
        )
        head = encoded_lines((header, *self._started.values()))
        stem = self._run_id if self._rotation is None else f"{self._run_id}.{number:04}"
        return Part(self._directory / f"{stem}{SUFFIX}", head)

    def _rotate(self, rotation: Rotation) -> None:
        """Start the next part, then compress and remove parts as the rotation says."""
        try:
            full, self._part = self._part, self._begin(self._begun)
            self._begun, self._made_room = self._begun + 1, False
            full.close()
            closed = self._accusing if self._found else self._clean
            self._found = False
            closed.append(full.path)
            if self._compress is not None:
                closed[-1] = pack(full.path, self._compress)
            while rotation.keep and len(self._clean) + len(self._accusing) >= rotation.keep:
                self._least_wanted().unlink(missing_ok=True)
        except (OSError, RecordingError) as error:
            if not self._trouble:
                _log.warning("hicache-dbg: rotation of %s, said once: %s", self.path, error)
            self._trouble = True

    def _least_wanted(self) -> Path:
        """Remove from the lists the closed part to delete.

        The first with a finding stays longest.
        """
        if self._clean:
            return self._clean.pop(0)
        return self._accusing.pop(min(1, len(self._accusing) - 1))
