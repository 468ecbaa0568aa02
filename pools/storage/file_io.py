"""Whole records into files and out of them, in as few system calls as their pieces allow."""

import os
from collections.abc import Iterator, Sequence

import xxhash

from hicache_dbg.pools.storage.store import Record

__all__ = ["read_at_once", "read_cached", "read_in_steps", "write_all"]

#: Pieces that one system call takes.
MOST_PIECES = os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 1024
#: A step of a read from the disk: enough for one call, few enough to be digested from the core's cache.
#: The kernel reads ahead in larger and larger units of memory then, which costs it a third less.
STEP_BYTES = 256 << 10


def write_all(descriptor: int, pieces: Sequence[memoryview]) -> None:
    """Write every piece behind the other."""
    left = list(pieces)
    while left:
        left = _after(left, os.writev(descriptor, left[:MOST_PIECES]))


def read_at_once(descriptor: int, record: Record) -> int:
    """Bytes read into header and pieces: all that they hold, or less where the file ends before."""
    left, total = _pieces(record), 0
    while left and (got := os.readv(descriptor, left[:MOST_PIECES])):
        total += got
        left = _after(left, got)
    return total


def read_cached(descriptor: int, record: Record) -> int | None:
    """The same if the file's two ends are in memory; else None, and the kernel may have begun to read."""
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    look = [bytearray(1)]
    try:
        for at in (0, record.nbytes - 1):
            os.preadv(descriptor, look, at, os.RWF_NOWAIT)
    except OSError:  # not in memory, or a file system that cannot tell
        return None
    return read_at_once(descriptor, record)


def read_in_steps(descriptor: int, record: Record, *, digest: bool) -> int:
    """The same from the disk; the payload's digest is taken step by step, if asked for."""
    total, hasher = 0, xxhash.xxh3_64()
    for step in _steps(_pieces(record)):
        left = step
        while left and (got := os.readv(descriptor, left[:MOST_PIECES])):
            total += got
            left = _after(left, got)
        if left:  # the file ends here
            return total
        if digest:
            for piece in step:
                if piece.obj is not record.header:
                    hasher.update(piece)
    if digest:
        record.digest = hasher.intdigest()
    return total


def _pieces(record: Record) -> list[memoryview]:
    return [memoryview(record.header), *record.pieces]


def _steps(pieces: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    """The pieces in groups of about ``STEP_BYTES``, longer ones cut."""
    group, size = list[memoryview](), 0
    for piece in pieces:
        for at in range(0, len(piece), STEP_BYTES):
            part = piece[at : at + STEP_BYTES]
            group.append(part)
            size += len(part)
            if size >= STEP_BYTES:
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
