"""The record of one handover at one end, and its events."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import xxhash

from hicache_dbg.pools.geometry import PoolGeometry
from hicache_dbg.pools.handover.requests import Receiving, Sending
from hicache_dbg.tracer.attach.hicache_handover_filled import Filled, filled
from hicache_dbg.tracer.events import DIRECTION, Copied, Event, Op, SkipReason, Stated, Topic
from hicache_dbg.tracer.ledger import Digests, Flags, Pages
from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.sampling import chosen
from hicache_dbg.tracer.settings import Checksum, Settings

__all__ = ["HandoverRecord", "TileStatements", "open_record"]

MOST_PAGES_KEPT = 64
#: Disjoint from the ids of the engine's own operations.
_op_ids = count(1 << 32)


@dataclass(slots=True)
class HandoverRecord:
    """A request's pages at one end; ``digests`` maps (pool, component) to uint64 [layers, pages].

    ``chosen`` marks the logical pages to digest, ``reused`` those that were reallocated before.
    ``skip`` is the reason if no tile counts. ``word`` is the outcome in the words that both ends use,
    ``status`` the outcome in full. ``filled`` holds the filled slots by pool.
    """

    op: Op
    role: str
    rank: int
    request: str
    pages: Pages
    mirrors: Sequence[MirrorViews]
    layers: Mapping[str, tuple[int, ...]]
    filled: Mapping[str, Filled]
    chosen: Flags
    trace: tuple[str, str]
    skip: SkipReason | None
    op_id: int
    began: float
    digests: dict[tuple[str, str], Digests] = field(default_factory=dict)
    reused: Flags = field(default_factory=lambda: np.zeros(0, np.bool_))
    word: str = ""
    status: str = "ok"
    time_ns: int = 0
    duration_us: float = 0.0

    @property
    def bytes(self) -> int:
        """The bytes moved, in all pools."""
        return sum(_bytes(mirror, len(self.pages)) for mirror in self.mirrors)

    def room(self, pool: str, component: str, layers: int) -> Digests:
        """Return the array of a component's digests, uint64 [layers, pages], creating it on first use."""
        shape = layers, len(self.pages)
        return self.digests.setdefault((pool, component), np.zeros(shape, np.uint64))

    def ready(self) -> bool:
        """Return True: the digests are complete before it is pushed."""
        return True

    def events(self) -> list[Event]:
        """Return one copy per pool, and the count of pages."""
        topic = Topic.SENT if self.op is Op.SEND else Topic.RECEIVED
        began_ns = self.time_ns - round(self.duration_us * 1e3)
        said = self._stated(topic, (f"{len(self.pages)}", self.word), began_ns=began_ns)
        return [*(self._copied(mirror) for mirror in self.mirrors), said]

    def tiles(self) -> list[Event]:
        """Return the digests: one statement per logical page and component, one value per layer."""
        good = self.chosen & ~self.reused
        numbers = {
            pool: np.flatnonzero(good & (filled.slots > 0)) for pool, filled in self.filled.items()
        }
        return [
            self._stated(
                Topic.TILES,
                _hex(column),
                pool=pool,
                component=component,
                page=page,
                layers=self.layers[pool],
            )
            for (pool, component), digests in self.digests.items()
            for page, column in zip(numbers[pool].tolist(), digests.T[numbers[pool]], strict=True)
        ]

    def _stated(self, topic: Topic, values: tuple[str, ...], **more: object) -> Stated:
        return Stated(
            time_ns=self.time_ns,
            rank=self.rank,
            topic=topic,
            values=values,
            role=self.role,
            request=self.request,
            **more,  # type: ignore[arg-type]
        )

    def _copied(self, mirror: MirrorViews) -> Copied:
        views = tuple(mirror.device.values())
        a_page = sum(view.layers for view in views)
        good = self.chosen & ~self.reused
        left = {
            SkipReason.SAMPLED_OUT: int((~self.chosen).sum()),
            SkipReason.REUSED: int((self.chosen & self.reused).sum()),
            SkipReason.PARTIAL: int((good & (self.filled[mirror.pool].slots == 0)).sum()),
        }
        if self.skip is not None:
            left = {self.skip: len(self.pages)}
        source, destination = DIRECTION[self.op]
        indices = len(self.pages) * mirror.slot_page
        return Copied(
            time_ns=self.time_ns,
            rank=self.rank,
            pool=mirror.pool,
            op=self.op,
            token_granular=False,
            layout=views[0].layout,
            h=0,
            d=indices,
            slot_page=mirror.slot_page,
            unit=mirror.index_unit,
            pages=len(self.pages),
            item_bytes=mirror.item_bytes,
            dtype=views[0].dtype,
            layers=views[0].layers,
            cls=mirror.device_cls,
            io_backend="nixl",
            src=source,
            dst=destination,
            bytes=0 if self.skip is SkipReason.FAILED else _bytes(mirror, len(self.pages)),
            duration_us=self.duration_us,
            witnessed=(len(self.pages) - sum(left.values())) * a_page,
            skipped={reason.value: count * a_page for reason, count in left.items() if count},
            op_id=self.op_id,
            device_pages=tuple(self.pages[:MOST_PAGES_KEPT].tolist()),
            trace_id=self.trace[0],
            span_id=self.trace[1],
            status=self.status,
        )


def _hex(digests: Digests) -> tuple[str, ...]:
    """Format digests as 16 hex digits, in one call: one by one, thousands would hold the GIL too long."""
    return tuple(digests.astype(">u8").tobytes().hex(" ", 8).split())


def _bytes(mirror: MirrorViews, pages: int) -> int:
    return pages * sum(view.page_span * view.layers for view in mirror.device.values())


@dataclass(frozen=True, slots=True)
class TileStatements:
    """The digests of a record, stated before its outcome is known, in case the process is killed."""

    record: HandoverRecord

    def ready(self) -> bool:
        """Return True: the digests are complete."""
        return True

    def events(self) -> list[Event]:
        """Return one statement per logical page and component."""
        return self.record.tiles()


def open_record(
    one: Sending | Receiving,
    *,
    op: Op,
    role: str,
    mirrors: Sequence[MirrorViews],
    geometries: Mapping[str, PoolGeometry],
    settings: Settings,
    skip: SkipReason | None,
) -> HandoverRecord:
    """Create a record. Both ends choose the same pages to digest."""
    if settings.checksum is Checksum.OFF:
        skip = skip or SkipReason.OFF
    pages = np.array(one.pages, np.int64)
    marked = np.ones(len(pages), np.bool_)
    if settings.checksum is Checksum.SAMPLE:
        name = np.full(len(pages), xxhash.xxh3_64_intdigest(one.request.encode()) >> 1, np.int64)
        marked = chosen(np.arange(len(pages)), name, settings.sample)
    return HandoverRecord(
        op=op,
        role=role,
        rank=settings.rank,
        request=one.request,
        pages=pages,
        mirrors=mirrors,
        layers={name: geometry.layer_ids for name, geometry in geometries.items()},
        filled={
            name: filled(geometry, len(pages), one.tokens) for name, geometry in geometries.items()
        },
        chosen=marked,
        trace=one.trace,
        skip=skip,
        op_id=next(_op_ids),
        began=time.perf_counter(),
        reused=np.zeros(len(pages), np.bool_),
    )
