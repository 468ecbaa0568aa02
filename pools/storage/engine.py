"""The one place where pages cross between host and store: whole operations, each page with its end."""

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal

import numpy as np
import numpy.typing as npt
import xxhash

from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.radix_input import TOKEN_BYTES
from hicache_dbg.pools.storage.header import HEADER_BYTES, Header, check
from hicache_dbg.pools.storage.image import HostImage
from hicache_dbg.pools.storage.keys import Identity, PageKey, page_keys
from hicache_dbg.pools.storage.results import PageResult, PageState
from hicache_dbg.pools.storage.store import PageStore, Record

__all__ = ["StorageEngine", "StorageOp"]

#: Below this a second thread costs more than it hashes, in bytes a page.
BESIDE_BYTES = 256 << 10
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
    when it is fetched; large pages are hashed on a thread beside the one that moves them.

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
        self._beside = ThreadPoolExecutor(1, "hicache-hash") if beside else None
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
        digests: list[int] = []

        def headed() -> Iterator[Record]:
            for key, record, digest in zip(op.keys, records, self._hashed(records), strict=True):
                digests.append(digest)
                record.header[:] = self.header(key, digest).encode()
                yield record

        results = enumerate(self.backend.put(headed()))
        op.results = [replace(result, digest=digests[at]) for at, result in results]
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
        op.results = [end.result() if isinstance(end, Future) else end for end in ends]
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
        if self._beside is not None:
            self._beside.shutdown(wait=False)
        self.backend.close()

    def _records(self, op: StorageOp) -> list[Record]:
        return [
            Record(
                key.name,
                bytearray(HEADER_BYTES),
                self.image.pieces(page),
                *self.image.addresses(page),
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

    def _hashed(self, records: Sequence[Record]) -> Iterator[int]:
        """The payloads' digests in order, one ahead of another's use where there is a second thread."""
        if not self._digests:
            return iter([0] * len(records))
        map_ = map if self._beside is None else self._beside.map
        return iter(map_(_digest, [record.pieces for record in records]))

    def arrived(
        self, key: PageKey, record: Record, got: PageResult
    ) -> "PageResult | Future[PageResult]":
        """Judge one page that the store has delivered: header, length, and the payload's digest."""
        if not got.good:
            return got
        result = check(record.header, self.header(key), got.nbytes)
        if not result.good or not result.digest or not self._digests:
            return result
        if self._beside is None:
            return _compared(record, result)
        return self._beside.submit(_compared, record, result)


def _digest(pieces: Sequence[memoryview]) -> int:
    if len(pieces) == 1:
        return xxhash.xxh3_64_intdigest(pieces[0])
    hasher = xxhash.xxh3_64()
    for piece in pieces:
        hasher.update(piece)
    return hasher.intdigest()


def _compared(record: Record, result: PageResult) -> PageResult:
    digest = _digest(record.pieces)
    if digest == result.digest:
        return result
    return PageResult(
        PageState.DAMAGED,
        "payload digest differs from its header's",
        expected=f"{result.digest:016x}",
        got=f"{digest:016x}",
        nbytes=result.nbytes,
        digest=result.digest,
    )
