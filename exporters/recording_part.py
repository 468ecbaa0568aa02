"""One file of a recording: created, appended to, and compressed once it is closed."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

from hicache_dbg.exporters.descriptors import opened, there
from hicache_dbg.exporters.recording_format import PACKED, RecordingError
from hicache_dbg.exporters.writing import why_not

__all__ = ["Part", "compressor", "pack"]

_NEW_FILE = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Part:
    """An append-only file that only its owner can read, starting with ``head``.

    Raises:
        RecordingError: the folder is missing or not writable, or the file exists already.
    """

    def __init__(self, path: Path, head: bytes) -> None:
        self.path = path
        self.size = 0
        self._torn = False
        try:
            self._file = os.open(path, _NEW_FILE, 0o600)
        except OSError as error:
            known = error.errno == errno.EEXIST
            why = (
                "the run was recorded before: choose another run id"
                if known
                else why_not(path, error)
            )
            raise RecordingError(f"cannot record to {path}: {why}") from error
        self._what = opened(self._file)
        _, failure = self.append(head)
        if failure is not None:
            self.close()
            path.unlink()
            raise RecordingError(f"cannot record to {path}: {why_not(path, failure)}") from failure

    def append(self, lines: bytes) -> tuple[int, OSError | None]:
        """Write ``lines`` at once.

        Return how many are complete on disk, and what stopped the rest.
        """
        # Terminate a line that was cut short, so that it does not swallow the next one.
        start = b"\n" if self._torn else b""
        data = memoryview(start + lines)
        written, failure = 0, None
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError as error:
            failure = error
        self.size += written
        if written:
            self._torn = data[written - 1] != ord("\n")
        whole = bytes(data[len(start) : written]).count(b"\n")
        return whole, failure

    @property
    def is_gone(self) -> bool:
        """Whether writes would be lost: the file was removed, or its descriptor is gone."""
        found = there(self._file, self._what)
        return found is None or found.st_nlink == 0

    def close(self) -> None:
        """Close the file; every line is already with the kernel."""
        if there(self._file, self._what) is not None:
            os.close(self._file)


def compressor() -> Callable[[bytes], bytes]:
    """Return the function that compresses a part.

    Raises:
        RecordingError: the ``zstandard`` package is not installed.
    """
    try:
        import zstandard
    except ImportError as error:
        raise RecordingError(
            "compressed recordings need the zstandard package: pip install zstandard, or turn "
            "compression off"
        ) from error
    return zstandard.ZstdCompressor().compress


def pack(path: Path, compress: Callable[[bytes], bytes]) -> Path:
    """Compress a closed part; the compressed file appears complete or not at all."""
    packed = path.with_name(path.name + PACKED)
    unfinished = packed.with_name(packed.name + ".part")
    try:
        unfinished.touch(mode=0o600)
        unfinished.write_bytes(compress(path.read_bytes()))
        unfinished.replace(packed)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    path.unlink()
    return packed
