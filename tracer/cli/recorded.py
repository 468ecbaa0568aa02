"""Create the recording of a run that a verb executes itself."""

from pathlib import Path

from hicache_dbg.exporters.recording import RecordingError, RecordingSink
from hicache_dbg.exporters.writing import why_not
from hicache_dbg.tracer.cli.exits import CommandError
from hicache_dbg.tracer.sinks import run_id

__all__ = ["made", "recording_in"]


def recording_in(folder: Path) -> RecordingSink:
    """Return a sink with a new recording in ``folder``, which is created if missing.

    Raises:
        CommandError: the recording can't be written there.
    """
    try:
        return RecordingSink(made(folder), run_id(0))
    except RecordingError as error:
        raise CommandError(str(error)) from error


def made(folder: Path) -> Path:
    """Create ``folder`` if it is missing, and return it.

    Raises:
        CommandError: it can't be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise CommandError(f"cannot record to {folder}: it is a file, expected a folder") from error
    except OSError as error:
        raise CommandError(f"cannot record to {folder}: {why_not(folder, error)}") from error
    return folder
