"""Check that a file descriptor still refers to the file that was opened under it.

A host that daemonizes closes every descriptor, ours included. The next file or socket it opens
reuses the number, and whatever we wrote there would go into the host's file.
"""

import os

__all__ = ["Opened", "opened", "there"]

#: Device and inode.
Opened = tuple[int, int]


def opened(file: int) -> Opened:
    """Return the identity of ``file``, for later comparison."""
    found = os.fstat(file)
    return found.st_dev, found.st_ino


def there(file: int, what: Opened) -> os.stat_result | None:
    """Return the status of ``file``; None if it is no longer ``what``."""
    try:
        found = os.fstat(file)
    except OSError:
        return None
    return found if (found.st_dev, found.st_ino) == what else None
