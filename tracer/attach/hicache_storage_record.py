"""One operation of the storage tier on its way to the judge."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import xxhash

from hicache_dbg.pools.storage.image import HostImage
from hicache_dbg.pools.storage.keys import PageKey
from hicache_dbg.pools.storage.results import PageResult
from hicache_dbg.tracer.events import Copied, Finding, Op
from hicache_dbg.tracer.ledger import Digests, Pages
from hicache_dbg.tracer.mirror import MirrorViews, SpanIds

__all__ = ["StorageRecord", "Tiles", "sample_of"]

Tiles = dict[tuple[str, str], Digests]
"""Digests of one page's tiles: uint64 [layers] by (pool, component)."""
Judge = Callable[["StorageRecord"], list[Copied]]

#: Bytes at either end of a piece of a page that tell whether it was written at all.
SAMPLE_BYTES = 64


@dataclass(slots=True)
class StorageRecord:
    """One store or fetch, how each page ended, and what was digested on the way.

    Pages are meant by their number in the operation. ``payloads`` are digests of all bytes of host
    pages, ``tiles`` those of their tiles, as far as they were taken at once; ``before`` and
    ``after`` a few bytes of each page, which tell one that was not written at all. ``findings`` is
    filled when the record is judged. ``store`` stands for the store, and ``let_go`` are pages that it
    did not give and no longer says it has: it made room between the two questions. ``judged`` says
    that nobody needs its pages any more.
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
    findings: list[Finding] = field(default_factory=list)
    let_go: frozenset[int] = frozenset()
    judged: bool = False
    judge: "Judge | None" = None
    requests: Sequence[SpanIds] = ()

    @property
    def pools(self) -> str:
        """Every pool that moves with the page."""
        return "+".join(mirror.pool for mirror in self.mirrors)

    def ready(self) -> bool:
        """Whatever is digested later is looked at on the bus's thread."""
        return True

    def events(self) -> list[Copied]:
        """One event a pool."""
        assert self.judge is not None  # noqa: S101 - set before the record is pushed
        return self.judge(self)

    def found(self) -> list[Finding]:
        """What is wrong, once the record was judged."""
        return self.findings

    def still(self, at: int) -> bool:
        """Whether the host page is the one it was: of this life, and not written again."""
        one = slice(at, at + 1)
        return all(
            mirror.still(self.host[one], self.generations[one], writes[one])
            for mirror, writes in zip(self.mirrors, self.writes, strict=True)
        )

    def payload_now(self, at: int) -> int:
        """XXH3-64 of all bytes of a page, in the order in which they are stored."""
        hasher = xxhash.xxh3_64()
        for piece in self.image.pieces(int(self.host[at])):
            hasher.update(piece)
        return hasher.intdigest()


def sample_of(image: HostImage, page: int) -> int:
    """A digest of both ends of each piece of a host page."""
    hasher = xxhash.xxh3_64()
    for piece in image.pieces(page):
        hasher.update(piece[:SAMPLE_BYTES])
        hasher.update(piece[-SAMPLE_BYTES:])
    return hasher.intdigest()
