"""The record of one storage operation, from the traced call to the judge."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import xxhash

from hicache_dbg.pools.storage.image import HostImage
from hicache_dbg.pools.storage.keys import PageKey
from hicache_dbg.pools.storage.results import PageResult
from hicache_dbg.tracer.events import Event, Op
from hicache_dbg.tracer.ledger import Digests, Pages
from hicache_dbg.tracer.mirror import MirrorViews, SpanIds

__all__ = ["StorageRecord", "Tiles", "sample_of"]

Tiles = dict[tuple[str, str], Digests]
"""The digests of one page's tiles: uint64 [layers] by (pool, component)."""
Judge = Callable[["StorageRecord"], list[Event]]

#: Bytes at either end of a piece that are sampled to tell whether it was written at all.
SAMPLE_BYTES = 64


@dataclass(slots=True)
class StorageRecord:
    """One store or fetch: the outcome of each page, and the digests taken so far.

    Pages are identified by their index in the operation. ``payloads`` holds digests of all bytes of
    host pages, ``tiles`` those of their tiles, as far as they were taken at once. ``before`` and
    ``after`` are digests of a few bytes of each page, which tell a page that was not written at
    all. ``store`` identifies the store. ``let_go`` are the pages that it did not deliver and no longer
    claims to have: it evicted them between lookup and get. ``judged`` says that the pages are no longer
    needed, ``after_gap`` that operations before this one were not recorded.
    """

    op: Op
    op_id: int
    keys: tuple[PageKey, ...]
    host: Pages
    generations: Pages
    mirrors: list[MirrorViews]
    writes: list[Pages]  # of each mirror, as in CopyRecord
    image: HostImage
    chosen: np.ndarray  # bool [pages]
    off: bool
    store: object
    backend: str
    fallback: str
    results: list[PageResult] = field(default_factory=list)
    payloads: dict[int, int] = field(default_factory=dict)
    tiles: dict[int, Tiles] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    after: dict[int, int] = field(default_factory=dict)
    time_ns: int = 0
    duration_us: float = 0.0
    status: str = "ok"
    let_go: frozenset[int] = frozenset()
    judged: bool = False
    after_gap: bool = False
    judge: "Judge | None" = None
    requests: Sequence[SpanIds] = ()

    @property
    def pools(self) -> str:
        """The names of all pools that the operation moves, joined by ``+``."""
        return "+".join(mirror.pool for mirror in self.mirrors)

    def ready(self) -> bool:
        """Return True: whatever is digested later is read on the bus's thread."""
        return True

    def events(self) -> list[Event]:
        """Judge the operation and return one event per pool, and the findings."""
        assert self.judge is not None  # noqa: S101 - set before the record is pushed
        return self.judge(self)

    def drop(self) -> None:
        """Release the pages: the record will not be judged."""
        self.judged = True

    def still(self, at: int) -> bool:
        """Return whether the host page still has its generation and was not written since."""
        one = slice(at, at + 1)
        return all(
            mirror.still(self.host[one], self.generations[one], writes[one])
            for mirror, writes in zip(self.mirrors, self.writes, strict=True)
        )

    def payload_now(self, at: int) -> int:
        """Return the XXH3-64 of all bytes of a page, in storage order."""
        hasher = xxhash.xxh3_64()
        for piece in self.image.pieces(int(self.host[at])):
            hasher.update(piece)
        return hasher.intdigest()


def sample_of(image: HostImage, page: int) -> int:
    """Return a digest of both ends of each piece of a host page."""
    hasher = xxhash.xxh3_64()
    for piece in image.pieces(page):
        hasher.update(piece[:SAMPLE_BYTES])
        hasher.update(piece[-SAMPLE_BYTES:])
    return hasher.intdigest()
