"""Whether a descriptor is still the file that was opened under it.

A host that becomes a daemon closes every descriptor, ours too, and the next file or socket that it opens has
the same number: what is written there then is the host's own.
"""

import os

__all__ = ["Opened", "opened", "there"]

#: Device and inode.
Opened = tuple[int, int]


def opened(file: int) -> Opened:
    """What ``file`` is, to be asked about later."""
    found = os.fstat(file)
    return found.st_dev, found.st_ino


def there(file: int, what: Opened) -> os.stat_result | None:
    """What is known of ``file``; None where it is not ``what`` any more."""
    try:
        found = os.fstat(file)
    except OSError:
        return None
    return found if (found.st_dev, found.st_ino) == what else None
