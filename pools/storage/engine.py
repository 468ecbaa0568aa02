"""Moves pages between host memory and a store, one operation at a time, with a result per page."""

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

#: Smaller pages (bytes) are hashed faster than another thread can be woken.
BESIDE_BYTES = 1 << 20
#: Most hashing threads. Before a put and after a get of many pages, hashing is all there is to do.
HASHERS = 4
#: A record in one of these states is useless to every reader, so it makes room for a good one.
_WORTHLESS = frozenset({PageState.SHORT, PageState.DAMAGED, PageState.FOREIGN})


@dataclass(slots=True, eq=False)
class StorageOp:
    """One operation on whole pages of all pools.

    ``generations[i]`` is the allocation generation of the i-th host page. ``results[i]`` is its
    outcome, valid once ``status`` is ``done``.
    """

    op_id: int
    kind: Literal["store", "fetch"]
    keys: tuple[PageKey, ...]
    host: Ids
    generations: npt.NDArray[np.uint32]
    results: list[PageResult] = field(default_factory=list)
    status: str = "pending"


class StorageEngine:
    """Executes operations on the calling thread, against one store.

    Every record carries a digest of its payload in the header: computed from host memory on a
    store, compared on a fetch. Large pages are hashed by other threads while I/O is in progress.

    Args:
        group: the pools, whose host pages are stored in their memory layout.
        backend: where pages go.
        identity: model, namespace and rank that the pages belong to.
        digests: whether payloads are hashed; without, damage to them goes undetected.

    Raises:
        HeaderError: the description of a page does not fit into a header.
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
        """Create an operation on ``host`` pages, one for each key."""
        return StorageOp(next(self._numbers), kind, tuple(keys), host, generations)

    def keys(self, tokens: bytes) -> list[PageKey]:
        """Return the keys of all whole pages of ``tokens`` (int32, little-endian)."""
        return page_keys(self.identity, tokens, self.image.page_tokens * TOKEN_BYTES)

    def present(self, keys: Sequence[PageKey]) -> int:
        """Return how many leading ``keys`` the store claims to have.

        Raises:
            OSError: the store does not answer.
        """
        found = self.backend.exists([key.name for key in keys])
        return next((at for at, here in enumerate(found) if not here), len(found))

    def store(self, op: StorageOp) -> None:
        """Put every page of ``op``; the host pages must not change until this returns."""
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
        """Get every page of ``op``; the host page of a result that is not good may hold anything."""
        op.status = "failed"
        records = self._records(op)
        arriving = self.backend.get(records)
        try:
            ends = [
                self.arrived(key, record, got)
                for key, record, got in zip(op.keys, records, arriving, strict=True)
            ]
        finally:  # a traceback would keep the generator alive, and its threads writing to our pages
            if isinstance(arriving, Generator):
                arriving.close()
        # Last one first: the hashing threads start at the front.
        settled = [end.result() if isinstance(end, _Coming) else end for end in reversed(ends)]
        op.results = settled[::-1]
        for key, result in zip(op.keys, op.results, strict=True):
            if result.state in _WORTHLESS:
                self.backend.discard(key.name)
        op.status = "done"

    def gave_up(self, kind: Literal["store", "fetch"], pages: int, why: str) -> None:
        """Announce that ``pages`` were not stored, or not waited for, because the store does not answer.

        Does nothing: it is a hook for whoever observes the engine.
        """

    def close(self) -> None:
        """Close the store and end the hashing threads."""
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
        """Return the header that the record of this page has, or should have."""
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
        """Validate one page that the store delivered: header, length and payload digest."""
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
    """A page whose payload is being hashed."""

    page: PageResult
    digest: Job

    def result(self) -> PageResult:
        """Wait for the digest and return the outcome of the page."""
        return _compared(self.page, self.digest.result())


def _compared(page: PageResult, digest: int) -> PageResult:
    """Return the outcome of a page that is good so far, given the digest of its payload."""
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
