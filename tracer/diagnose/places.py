"""Resolve where a user says the events are: recordings, or folders of them."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from hicache_dbg.exporters.recording_format import RecordingError, recordings_in
from hicache_dbg.tracer.diagnose.recordings import RecordingSource

__all__ = ["files_at", "recordings_at"]


def recordings_at(places: Sequence[Path], say: Callable[[str], None]) -> RecordingSource:
    """Return all recordings at ``places`` (files, or folders that hold some) as one source.

    Raises:
        RecordingError: a place holds none, or one of them cannot be read.
    """
    return RecordingSource(files_at(places), say)


def files_at(places: Sequence[Path]) -> list[Path]:
    """Return the recordings at ``places``, in order and without duplicates.

    Raises:
        RecordingError: a place holds none.
    """
    files: dict[Path, Path] = {}
    for place in places:
        inside = recordings_in(place) if place.is_dir() else [place]
        if not inside:
            raise RecordingError(_why_empty(place))
        for file in inside:
            # A file may be named twice, or also lie in a named folder.
            files.setdefault(file.resolve(), file)
    return list(files.values())


def _why_empty(folder: Path) -> str:
    """Return why ``folder`` seems to hold no recording: a listing hides that it was refused."""
    try:
        os.scandir(folder).close()
    except OSError as error:
        return f"cannot read {folder}: {error.strerror}"
    return f"{folder} holds no recording (*.jsonl or *.jsonl.zst)"
