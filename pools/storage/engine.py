"""The one place where pages cross between host and store: whole operations, each page with its end."""

import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Literal

import numpy as np
import numpy.typing as npt

from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.radix_input import TOKEN_BYTES
from hicache_dbg.pools.storage.digests import Digests, Job
from hicache_dbg.pools.storage.header import HEADER_BYTES, Header, check
from hicache_dbg.pools.storage.image import HostImage
from hicache_dbg.pools.storage.keys import Identity, PageKey, page_keys
from hicache_dbg.pools.storage.results import PageResult, PageState
from hicache_dbg.pools.storage.store import PageStore, Record

__all__ = ["StorageEngine", "StorageOp"]

#: Below this another thread costs more than it hashes, in bytes a page.
BESIDE_BYTES = 1 << 20
#: Threads that hash, at most: what a call of many pages waits for before it, and after it.
HASHERS = 4
#: Ends after which a record is of no use to anybody and makes room for a good one.
_WORTHLESS = frozenset({PageState.SHORT, PageState.DAMAGED, PageState.FOREIGN})


@dataclass(slots=True, eq=False)
class StorageOp:
    """One operation over whole pages of all pools.

    ``generations[i]`` is the allocation generation of the i-th host page, ``results[i]`` how it
    ended, once ``status`` is ``done``.
    """

    op_id: int
    kind: Literal["store", "fetch"]
    keys: tuple[PageKey, ...]
    host: Ids
    generations: npt.NDArray[np.uint32]
    results: list[PageResult] = field(default_factory=list)
    status: str = "pending"


class StorageEngine:
    """Carries operations out on the calling thread, against one store.

    Every page has a digest in its header, taken of the host memory when it is stored and compared
    when it is fetched; large pages are hashed beside what is moved, where there is a core for it.

    Args:
        group: the pools, whose host pages are stored as they lie.
        backend: where pages go.
        identity: whose they are.
        digests: whether payloads are digested; without, damage to them goes unseen.

    Raises:
        HeaderError: what is to be said of each page has no room in a header.
    """

    def __init__(
        self, group: PoolGroup, backend: PageStore, identity: Identity, *, digests: bool = True
    ) -> None:
        self.group = group
        self.backend = backend
        self.identity = identity
        self.image = HostImage(group)
        self._digests = digests
        self._numbers = count(1)
        beside = digests and self.image.page_bytes >= BESIDE_BYTES
        self._hasher = Digests(min(HASHERS, (os.cpu_count() or 1) - 1) if beside else 0)
        self.header(PageKey("0" * 32, 0), digest=2**64 - 1).encode()
        backend.register(self.image.regions())

    def op(
        self,
        kind: Literal["store", "fetch"],
        keys: Sequence[PageKey],
        host: Ids,
        generations: npt.NDArray[np.uint32],
    ) -> StorageOp:
        """A new operation on ``host`` pages, one for each key."""
        return StorageOp(next(self._numbers), kind, tuple(keys), host, generations)

    def keys(self, tokens: bytes) -> list[PageKey]:
        """The keys of the whole pages of ``tokens`` (int32, little-endian), from the first on."""
        return page_keys(self.identity, tokens, self.image.page_tokens * TOKEN_BYTES)

    def present(self, keys: Sequence[PageKey]) -> int:
        """How many of ``keys``, from the first on, the store believes it has.

        Raises:
            OSError: it does not answer.
        """
        found = self.backend.exists([key.name for key in keys])
        return next((at for at, here in enumerate(found) if not here), len(found))

    def store(self, op: StorageOp) -> None:
        """Put every page of ``op``; the host pages are read until this returns."""
        op.status = "failed"
        records = self._records(op)
        jobs: list[Job] = []

        def begun() -> Iterator[Record]:
            for key, record in zip(op.keys, records, strict=True):
                jobs.append(self._hasher.begin(record.pieces))
                record.seal = partial(self._seal, key, record, jobs[-1])
                yield record

        results = list(self.backend.put(begun()))
        if self._digests:
            results = [
                replace(result, digest=job.result()) if result.good else result
                for result, job in zip(results, jobs, strict=True)
            ]
        op.results = results
        op.status = "done"

    def fetch(self, op: StorageOp) -> None:
        """Get every page of ``op``; where one's result is not good its host page may hold anything."""
        op.status = "failed"
        records = self._records(op)
        arriving = self.backend.get(records)
        try:
            ends = [
                self.arrived(key, record, got)
                for key, record, got in zip(op.keys, records, arriving, strict=True)
            ]
        finally:  # an error keeps what it came through alive, and its thread may write to our pages
            if isinstance(arriving, Generator):
                arriving.close()
        # From the last one on: the other threads are at the first.
        settled = [end.result() if isinstance(end, _Coming) else end for end in reversed(ends)]
        op.results = settled[::-1]
        for key, result in zip(op.keys, op.results, strict=True):
            if result.state in _WORTHLESS:
                self.backend.discard(key.name)
        op.status = "done"

    def gave_up(self, kind: Literal["store", "fetch"], pages: int, why: str) -> None:
        """Pages that were not stored or not waited for, because the store does not answer.

        Nothing is done here: it is where whoever watches the engine learns of it.
        """

    def close(self) -> None:
        """Let the store go."""
        self._hasher.close()
        self.backend.close()

    def _records(self, op: StorageOp) -> list[Record]:
        return [
            Record(
                key.name,
                bytearray(HEADER_BYTES),
                self.image.pieces(page),
                *self.image.addresses(page),
                digests=self._digests,
            )
            for key, page in zip(op.keys, op.host.tolist(), strict=True)
        ]

    def header(self, key: PageKey, digest: int = 0) -> Header:
        """What the record of this page begins with, or should."""
        return Header(
            key=key.name,
            model=self.identity.model,
            namespace=self.identity.namespace,
            rank=self.identity.rank,
            tokens=f"{key.tokens:016x}",
            components=self.image.components,
            nbytes=self.image.page_bytes,
            digest=f"{digest:016x}" if self._digests else "",
        )

    def _seal(self, key: PageKey, record: Record, digest: Job) -> None:
        record.header[:] = self.header(key, digest.result() if self._digests else 0).encode()

    def arrived(self, key: PageKey, record: Record, got: PageResult) -> "PageResult | _Coming":
        """Judge one page that the store has delivered: header, length, and the payload's digest."""
        if not got.good:
            return got
        result = check(record.header, self.header(key), got.nbytes)
        if not result.good or not result.digest or not self._digests:
            return result
        if record.digest is not None:
            return _compared(result, record.digest)
        return _Coming(result, self._hasher.begin(record.pieces))


@dataclass(frozen=True, slots=True)
class _Coming:
    """A page whose payload is being digested."""

    page: PageResult
    digest: Job

    def result(self) -> PageResult:
        """How the page ended."""
        return _compared(self.page, self.digest.result())


def _compared(page: PageResult, digest: int) -> PageResult:
    """A page that is good so far, and what its payload's digest turned out to be."""
    if digest == page.digest:
        return page
    return PageResult(
        PageState.DAMAGED,
        "payload digest differs from its header's",
        expected=f"{page.digest:016x}",
        got=f"{digest:016x}",
        nbytes=page.nbytes,
        digest=page.digest,
    )
