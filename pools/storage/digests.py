"""Payload digests, computed by a thread pool as far as it keeps up, otherwise by the caller."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import xxhash

__all__ = ["Digests", "Job", "Payload", "digest_of"]

Payload = Sequence[memoryview]
"""The pieces of one page, in storage order."""


def digest_of(payload: Payload) -> int:
    """Return the XXH3-64 of the concatenated pieces."""
    if len(payload) == 1:
        return xxhash.xxh3_64_intdigest(payload[0])
    hasher = xxhash.xxh3_64()
    for piece in payload:
        hasher.update(piece)
    return hasher.intdigest()


class Job:
    """The digest of one payload; a caller that needs it before a thread started it computes it itself.

    A caller that needs several should ask for the last one first: the threads start at the front.
    """

    def __init__(self, payload: Payload, begun: Future[int] | None) -> None:
        self._payload = payload
        self._begun = begun
        self._digest: int | None = None

    def result(self) -> int:
        """Return the digest, computing it here if no thread has started on it."""
        if self._digest is None:
            if self._begun is None or self._begun.cancel():
                self._digest = digest_of(self._payload)
            else:
                self._digest = self._begun.result()
        return self._digest


class Digests:
    """Computes digests for one engine. Thread-safe.

    With cores to spare, the threads hide hashing behind I/O. Without, they make no progress and the
    caller hashes instead of waiting for them.

    Args:
        threads: number of threads besides the caller; 0 leaves all hashing to the caller.
    """

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, "hicache-hash") if threads else None

    def begin(self, payload: Payload) -> Job:
        """Queue ``payload`` for hashing."""
        begun = None
        if self._threads is not None:
            with suppress(RuntimeError):  # out of threads: the caller hashes
                begun = self._threads.submit(digest_of, payload)
        return Job(payload, begun)

    def close(self) -> None:
        """Let the threads end once their queue is empty."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)
