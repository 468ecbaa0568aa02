"""Keep files readable while their writer removes or compresses them.

A process that records removes its oldest parts to make room, and every reader of a live recording
takes longer than that.
"""

import os
import resource
import weakref
from pathlib import Path

__all__ = ["HeldFiles"]


class HeldFiles:
    """Files that are open for as long as this object lives."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}
        weakref.finalize(self, _close, self._descriptors)

    def hold(self, file: str) -> None:
        """Open ``file``, unless this process has half of its files open already.

        Raises:
            OSError: it cannot be opened.
        """
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        if sum(1 for _ in Path("/proc/self/fd").iterdir()) < most:
            self._descriptors[file] = os.open(file, os.O_RDONLY | os.O_CLOEXEC)

    def readable(self, file: str, folder: Path) -> Path:
        """Return a path in ``folder`` that leads to the held file, or else ``file`` itself."""
        descriptor = self._descriptors.get(file)
        if descriptor is None:
            return Path(file)
        link = folder / f"{descriptor}.{Path(file).name}"
        link.symlink_to(f"/proc/self/fd/{descriptor}")
        return link


def _close(descriptors: dict[str, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)
