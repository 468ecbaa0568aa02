"""Digests of payloads, on a second thread as far as it keeps up, else on the caller's."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Semaphore

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
    """One payload's digest; who asks for it before the second thread began takes it itself."""

    def __init__(self, payload: Payload, digests: "Digests") -> None:
        self._payload = payload
        self._digests = digests
        self._begun: Future[int] | None = digests.begin(payload)

    @property
    def waits(self) -> bool:
        """Whether the second thread has no room for it."""
        return self._begun is None

    def result(self) -> int:
        """The digest."""
        if self._begun is None:
            return digest_of(self._payload)
        if self._begun.cancel():
            self._digests.gave_back()
            self._begun = None
            return digest_of(self._payload)
        return self._begun.result()


class Digests:
    """Takes digests for one engine; safe from any thread.

    On a machine with a core to spare the second thread hides them behind the moving of the next
    pages. Where there is none it gets nothing done, and nobody waits for it.

    Args:
        ahead: how many payloads the second thread may have before it; 0: there is none.
    """

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._room = Semaphore(ahead)
        self._thread = ThreadPoolExecutor(1, "hicache-hash") if ahead else None

    def in_order(self, payloads: Sequence[Payload]) -> Iterator[int]:
        """One digest a payload, others begun ahead while one is used."""
        following = iter(payloads[1:])
        begun: deque[Job] = deque()
        for payload in payloads:
            yield begun.popleft().result() if begun else digest_of(payload)
            while len(begun) < self._ahead and (later := next(following, None)) is not None:
                begun.append(Job(later, self))

    def of_arrived(self, payload: Payload) -> Job | int:
        """For a payload that has just come: taken now, from the cache, if the second thread is busy."""
        job = Job(payload, self)
        return job.result() if job.waits else job

    def begin(self, payload: Payload) -> Future[int] | None:
        """Let the second thread take it; None where it has enough to do."""
        if self._thread is None or not self._room.acquire(blocking=False):
            return None
        return self._thread.submit(self._take, payload)

    def gave_back(self) -> None:
        """One that was begun is not waited for any more."""
        self._room.release()

    def close(self) -> None:
        """End the thread once it has done what it has."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    def _take(self, payload: Payload) -> int:
        try:
            return digest_of(payload)
        finally:
            self._room.release()
