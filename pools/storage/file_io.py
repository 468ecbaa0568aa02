"""Write and read whole records with vectored system calls."""

import os
from collections.abc import Iterator, Sequence
from itertools import chain

import xxhash

from hicache_dbg.pools.storage.store import Record

__all__ = ["begins_in_memory", "read_at_once", "read_cached", "read_from_disk", "write_all"]

#: Most pieces that one system call takes.
MOST_PIECES = os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 1024
#: Bytes per read from the page cache: small enough to be hashed while still in the core's cache.
CACHED_STEP_BYTES = 512 << 10
#: Bytes per read from the disk: a read waits for anything beyond the kernel's readahead.
DISK_STEP_BYTES = 256 << 10


def write_all(descriptor: int, pieces: Sequence[memoryview], at: int) -> None:
    """Write the pieces one after another, from offset ``at`` on."""
    left = list(pieces)
    while left:
        done = os.pwritev(descriptor, left[:MOST_PIECES], at)
        at, left = at + done, _after(left, done)


def read_at_once(descriptor: int, record: Record) -> int:
    """Fill header and pieces; return the bytes read, fewer than requested if the file ends early."""
    left, total = [memoryview(record.header), *record.pieces], 0
    while left and (got := os.readv(descriptor, left[:MOST_PIECES])):
        total += got
        left = _after(left, got)
    return total


def begins_in_memory(descriptor: int, record: Record) -> bool:
    """Return whether the header is in the page cache; False if the system cannot tell."""
    if not hasattr(os, "RWF_NOWAIT"):
        return False
    try:
        os.preadv(descriptor, [record.header], 0, os.RWF_NOWAIT)
    except OSError:
        return False
    return True


def read_cached(descriptor: int, record: Record) -> int | None:
    """Read a record from the page cache, hashing it if wanted; return None if not all of it is there.

    The pieces may then hold anything, and the kernel may have started to read the file.
    """
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    try:
        return _read_in_steps(descriptor, record, CACHED_STEP_BYTES, os.RWF_NOWAIT)
    except OSError:  # not in memory, or a file system that cannot tell
        return None


def read_from_disk(descriptor: int, record: Record) -> int:
    """Read a record, waiting for the disk and hashing it if wanted."""
    return _read_in_steps(descriptor, record, DISK_STEP_BYTES, 0)


def _read_in_steps(descriptor: int, record: Record, step_bytes: int, flags: int) -> int:
    """Read the header alone, then the payload in steps.

    The kernel sizes its readahead from the first request of a file: units of memory grow from
    there, and a small first request costs a third less than a large one.
    """
    total, hasher, header = 0, xxhash.xxh3_64(), [memoryview(record.header)]
    for step in chain([header], _steps(record.pieces, step_bytes)):
        left = step
        while left and (got := os.preadv(descriptor, left[:MOST_PIECES], total, flags)):
            total += got
            left = _after(left, got)
        if left:  # the file ends here
            return total
        if record.digests and step is not header:
            for piece in step:
                hasher.update(piece)
    if record.digests:
        record.digest = hasher.intdigest()
    return total


def _steps(pieces: Sequence[memoryview], step_bytes: int) -> Iterator[list[memoryview]]:
    """Yield the pieces in groups of about ``step_bytes``; longer pieces are split."""
    group, size = list[memoryview](), 0
    for piece in pieces:
        for at in range(0, len(piece), step_bytes):
            part = piece[at : at + step_bytes]
            group.append(part)
            size += len(part)
            if size >= step_bytes:
                yield group
                group, size = [], 0
    if group:
        yield group


def _after(pieces: list[memoryview], done: int) -> list[memoryview]:
    """Return what is left of ``pieces`` after ``done`` bytes."""
    for number, piece in enumerate(pieces):
        if done < len(piece):
            return [piece[done:], *pieces[number + 1 :]]
        done -= len(piece)
    return []
