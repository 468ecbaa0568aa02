"""Digests of payloads, on threads of their own as far as they keep up, else on the caller's."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import xxhash

__all__ = ["Digests", "Job", "Payload", "digest_of"]

Payload = Sequence[memoryview]
"""The pieces of one page, in the order in which they are stored."""


def digest_of(payload: Payload) -> int:
    """XXH3-64 of the pieces as one."""
    if len(payload) == 1:
        return xxhash.xxh3_64_intdigest(payload[0])
    hasher = xxhash.xxh3_64()
    for piece in payload:
        hasher.update(piece)
    return hasher.intdigest()


class Job:
    """One payload's digest; who asks for it before another thread began takes it itself.

    Who asks for several had better begin with the last: the other threads are at the first.
    """

    def __init__(self, payload: Payload, begun: Future[int] | None) -> None:
        self._payload = payload
        self._begun = begun
        self._digest: int | None = None

    def result(self) -> int:
        """The digest."""
        if self._digest is None:
            if self._begun is None or self._begun.cancel():
                self._digest = digest_of(self._payload)
            else:
                self._digest = self._begun.result()
        return self._digest


class Digests:
    """Takes digests for one engine; safe from any thread.

    On a machine with cores to spare other threads hide them behind the moving of pages. Where there
    is none they get nothing done, and nobody waits for them.

    Args:
        threads: how many there are beside the caller.
    """

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, "hicache-hash") if threads else None

    def begin(self, payload: Payload) -> Job:
        """Let another thread take it, once what came before is begun."""
        begun = None if self._threads is None else self._threads.submit(digest_of, payload)
        return Job(payload, begun)

    def close(self) -> None:
        """End the threads once they have done what they have."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)
