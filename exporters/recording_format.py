"""Read a recording back: header, events, and a message for every incomplete line."""

import io
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from hicache_dbg.exporters.parts import PartMissingError
from hicache_dbg.tracer.events import SCHEMA_VERSION, Event

__all__ = [
    "FORMAT",
    "PACKED",
    "SUFFIX",
    "Header",
    "RecordingError",
    "begun",
    "files_of_recordings",
    "opened_recording",
    "read",
    "read_header",
    "recordings_in",
    "run_of",
]

FORMAT = "hicache-dbg-recording"
SUFFIX = ".jsonl"
#: Appended to the suffix of a compressed part.
PACKED = ".zst"

_log = logging.getLogger(__name__)


class RecordingError(Exception):
    """A recording cannot be written or read; the message says which, why and what to do."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: what the file is and which schema its events follow.

    ``boot_id`` and ``boot_ns`` tell when it was written on the machine's own clock, which nobody
    sets; empty and 0 if unknown.
    """

    format: str
    schema: int
    run_id: str
    time_ns: int
    part: int = 0
    boot_id: str = ""
    boot_ns: int = 0


def recordings_in(folder: Path) -> list[Path]:
    """Return the recordings in ``folder``, compressed ones included, parts of a run in order.

    Of a file that is there both ways, because it is being compressed or because somebody kept both,
    only one is returned: its events must not count twice. That is the plain one, unless it is empty.
    """
    found = files_of_recordings(folder)
    packed = {path.with_suffix("") for path in found if path.suffix == PACKED}
    # If it is gone, it was compressed meanwhile.
    plain = {path for path in packed if path.exists() and begun(path)}
    return [
        path
        for path in found
        if (
            path.with_suffix("") not in plain
            if path.suffix == PACKED
            else path not in packed - plain
        )
    ]


def files_of_recordings(folder: Path) -> list[Path]:
    """Return every file of the recordings in ``folder``, in the same order."""
    # In this order: what is compressed in between is found twice, not missed.
    found = [*folder.glob(f"*{SUFFIX}"), *folder.glob(f"*{SUFFIX}{PACKED}")]
    return sorted(found, key=_place)


def begun(path: Path) -> bool:
    """Return whether a file holds anything; also if its writer has removed it meanwhile."""
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return True


def run_of(path: Path) -> str:
    """Return the id of the run that a recording file belongs to."""
    return _place(path)[0]


def _place(path: Path) -> tuple[str, int, str]:
    """Return a sort key of run and part number; numbers may exceed their padding."""
    run, _, part = path.name.removesuffix(PACKED).removesuffix(SUFFIX).rpartition(".")
    return (run, int(part), path.name) if run and part.isdecimal() else (path.stem, -1, path.name)


def read(path: Path, *, say: Callable[[str], None] = _log.warning) -> Iterator[Event]:
    """Return the events of a recording, in the order in which they were written.

    A last line cut short by a kill is skipped, and so is a damaged line further up; ``say`` gets
    one sentence for each.

    Raises:
        RecordingError: the file cannot be read, is not a recording, or has a newer schema. It is
            raised here, before the first event is requested.
    """
    read_header(path)
    return _events(path, say)


def read_header(path: Path) -> Header:
    """Return the first line of a recording.

    Raises:
        RecordingError: the file cannot be read, is not a recording, or has a newer schema.
        PartMissingError: it is compressed, and zstandard is not installed.
    """
    try:
        if not path.is_dir() and path.exists() and not path.is_file():
            raise RecordingError(
                f"cannot read {path}: a recording is read more than once, and this is a pipe or a device: "
                "write it to a file first"
            )
        with opened_recording(path) as file:
            first = file.readline()
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror or error}") from error
    if not first:
        raise RecordingError(
            f"{path} is empty, or cut short before its first line: its writer was stopped before it began"
        )
    try:
        header = msgspec.json.decode(first, type=Header)
    except msgspec.MsgspecError:
        header = None
    if (
        header is None
        and not first.endswith(b"\n")
        and first.startswith(b'{"format":"%s"' % FORMAT.encode())
    ):
        raise RecordingError(
            f"{path} is cut short in its first line: its writer was stopped, or a copy is not complete"
        )
    if header is None or header.format != FORMAT:
        raise RecordingError(
            f"{path} is not a recording: expected a first line with format {FORMAT!r}, "
            f"got {first[:40]!r}; name what HICACHE_DBG_SINKS=recording or --record wrote"
        )
    if header.schema > SCHEMA_VERSION:
        raise RecordingError(
            f"{path} has schema {header.schema}, this version reads up to {SCHEMA_VERSION}: "
            "read it with a newer hicache-dbg"
        )
    return header


@contextmanager
def opened_recording(path: Path) -> Iterator[IO[bytes]]:
    """Open a recording, decompressing it if necessary."""
    if path.suffix != PACKED:
        with path.open("rb") as file:
            yield file
        return
    try:
        import zstandard
    except ImportError as error:
        raise PartMissingError(
            f"{path} is compressed: reading it needs", "zstandard", "zstd"
        ) from error
    try:
        with zstandard.open(path, "rb") as file:
            yield io.BufferedReader(file)
    except zstandard.ZstdError as error:
        raise RecordingError(f"{path} is damaged, the part read so far stands: {error}") from error


def _events(path: Path, say: Callable[[str], None]) -> Iterator[Event]:
    decoder = msgspec.json.Decoder(Event)
    with opened_recording(path) as file:
        file.readline()
        for number, text in enumerate(file, start=2):
            try:
                yield decoder.decode(text)
            except msgspec.MsgspecError as error:
                if text.endswith(b"\n"):
                    say(f"{path}, line {number}: skipped, not a whole event: {error}")
                else:
                    say(f"{path}, line {number}: skipped, cut short: the writer was stopped in it")
