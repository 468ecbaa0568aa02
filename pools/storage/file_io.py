"""Whole records into files and out of them, in as few system calls as their pieces allow."""

import os
from collections.abc import Iterator, Sequence
from itertools import chain

import xxhash

from hicache_dbg.pools.storage.store import Record

__all__ = ["begins_in_memory", "read_at_once", "read_cached", "read_from_disk", "write_all"]

#: Pieces that one system call takes.
MOST_PIECES = os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 1024
#: A step of a read out of the page cache: little enough to be digested out of the core's own cache.
CACHED_STEP_BYTES = 512 << 10
#: A step of a read from the disk: more than the kernel has read ahead is waited for.
DISK_STEP_BYTES = 256 << 10


def write_all(descriptor: int, pieces: Sequence[memoryview], at: int) -> None:
    """Write every piece behind the other, from ``at`` on."""
    left = list(pieces)
    while left:
        done = os.pwritev(descriptor, left[:MOST_PIECES], at)
        at, left = at + done, _after(left, done)


def read_at_once(descriptor: int, record: Record) -> int:
    """Bytes read into header and pieces: all that they hold, or less where the file ends before."""
    left, total = [memoryview(record.header), *record.pieces], 0
    while left and (got := os.readv(descriptor, left[:MOST_PIECES])):
        total += got
        left = _after(left, got)
    return total


def begins_in_memory(descriptor: int, record: Record) -> bool:
    """Whether a file's header can be had without waiting; False where nobody can tell."""
    if not hasattr(os, "RWF_NOWAIT"):
        return False
    try:
        os.preadv(descriptor, [record.header], 0, os.RWF_NOWAIT)
    except OSError:
        return False
    return True


def read_cached(descriptor: int, record: Record) -> int | None:
    """The same of a file in memory, with its digest if one is wanted; None where not all of it is.

    The kernel may have begun to read it then, and the pieces hold anything.
    """
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    try:
        return _read_in_steps(descriptor, record, CACHED_STEP_BYTES, os.RWF_NOWAIT)
    except OSError:  # not in memory, or a file system that cannot tell
        return None


def read_from_disk(descriptor: int, record: Record) -> int:
    """The same of a file that is to be waited for, with its digest if one is wanted."""
    return _read_in_steps(descriptor, record, DISK_STEP_BYTES, 0)


def _read_in_steps(descriptor: int, record: Record, step_bytes: int, flags: int) -> int:
    """The header alone, then the payload: what a file is first asked for is what the kernel begins with.

    It reads ahead in units of memory that grow from there, and has a third less to do for one small
    read than for a large one.
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
    """The pieces in groups of about ``step_bytes``, longer ones cut."""
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
    """What is left of ``pieces`` after ``done`` bytes."""
    for number, piece in enumerate(pieces):
        if done < len(piece):
            return [piece[done:], *pieces[number + 1 :]]
        done -= len(piece)
    return []
