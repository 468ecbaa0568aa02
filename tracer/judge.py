"""Judge a copy by its digests: tile outcomes and findings. Runs on the bus's thread."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from weakref import finalize

import msgspec
import numpy as np

from hicache_dbg.tracer.checks.content import Mismatch, explain
from hicache_dbg.tracer.events import Copied, Event, Finding, Op, SkipReason
from hicache_dbg.tracer.ledger import Book, Digests, Flags, Ledger
from hicache_dbg.tracer.mirror import Copy, MirrorViews
from hicache_dbg.tracer.probe import CopyRecord, Digester, Point, digest_tiles
from hicache_dbg.tracer.record import DEVICE_END
from hicache_dbg.tracer.settings import Checksum, Settings

__all__ = ["Judge"]

MOST_PAGES_KEPT = 64
_Books = tuple[tuple[str, Book], ...]


@dataclass(slots=True)
class _Tally:
    """Outcomes and findings of one copy."""

    verified: int = 0
    witnessed: int = 0
    mismatched: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    bad: list[tuple[int, int]] = field(default_factory=list)  # (layer, host page)

    def skip(self, reason: SkipReason, tiles: int) -> None:
        if tiles:
            self.skipped[reason.value] = self.skipped.get(reason.value, 0) + tiles


class Judge:
    """Keeps the ledger and decides the outcome of every tile of a copy.

    Args:
        settings: how closely to look.
        digester: digests the host end under ``checksum=ends``, and re-reads mismatched tiles.
        watched: returns whether every write since the copy has been counted.
    """

    def __init__(
        self, settings: Settings, digester: Digester, watched: Callable[[], bool] = lambda: True
    ) -> None:
        self.ledger = Ledger()
        self._books: dict[int, _Books] = {}  # by identity of the mirror
        self._settings = settings
        self._digester = digester
        self._watched = watched

    def __call__(self, record: CopyRecord) -> list[Event]:
        """Return the copy's event, followed by its findings."""
        tally, mirror = _Tally(), record.copy.mirror
        for component, book in self._books.get(id(mirror)) or self._open(mirror):
            self._component(record, component, book, tally)
        return [_copied(record, tally, self._settings.rank), *tally.findings]

    def _open(self, mirror: MirrorViews) -> _Books:
        """Open the books of a mirror's components on its first copy."""
        books = self._books[id(mirror)] = tuple(
            (
                component,
                self.ledger.book(
                    mirror, component, device.layers, mirror.host.get(component, device).pages
                ),
            )
            for component, device in mirror.device.items()
        )
        finalize(mirror, self._books.pop, id(mirror), None)
        return books

    def _component(self, record: CopyRecord, component: str, book: Book, tally: _Tally) -> None:
        copy, backup = record.copy, record.copy.op is Op.BACKUP
        taken = record.digests.get((DEVICE_END[copy.op], component))
        if record.status != "ok" or record.skip is not None or taken is None:
            if backup:
                book.forget(copy.host_pages)
            tally.skip(_not_judged(record), len(copy.layers) * len(copy.host_pages))
        elif self._is_plain(record) and self._plain(record, component, book, taken, tally):
            pass  # the common case, settled by the bulk comparison
        else:
            (self._backup if backup else self._load)(record, component, book, tally)

    def _is_plain(self, record: CopyRecord) -> bool:
        """Return whether whole pages moved and were digested at the device end and nowhere else."""
        return (
            record.copy.spans is None
            and self._settings.checksum is not Checksum.ENDS
            and len(record.digests) == len(record.copy.mirror.device)
            and b"\0" not in record.digested.tobytes()
        )

    @staticmethod
    def _plain(
        record: CopyRecord, component: str, book: Book, taken: Digests, tally: _Tally
    ) -> bool:
        """Witness a backup, or verify a load in one comparison.

        Return False if a load needs a closer look.
        """
        copy, whole = record.copy, record.copy.mirror.whole_page
        tiles = copy.host_pages, copy.generations, copy.layers
        if copy.op is Op.BACKUP:
            book.witness(*tiles, taken, whole, record.writes)
            tally.witnessed += taken.size
            return True
        confirmed = record.confirmed.get(component)
        if confirmed is None:
            verified = book.holds(*tiles, taken, whole, record.writes)
        else:  # the device compared them, with what the ledger may no longer vouch for
            verified = b"\0" not in confirmed.tobytes() and book.knows(*tiles, whole, record.writes)
        tally.verified += taken.size * verified
        return verified

    def _backup(self, record: CopyRecord, component: str, book: Book, tally: _Tally) -> None:
        copy, layers = record.copy, len(record.copy.layers)
        book.leave_out(copy.host_pages[~record.digested], copy.generations[~record.digested])
        tally.skip(SkipReason.SAMPLED_OUT, layers * int((~record.digested).sum()))
        source = record.digests[Point.SOURCE_BEFORE, component]
        host = self._host_end(record, component)
        for span, group in _groups(copy, record.digested):
            if span[1] <= span[0]:  # scattered slots of one page: no range to digest
                book.forget(copy.host_pages[record.digested][group])
                tally.skip(SkipReason.PARTIAL, layers * int(group.sum()))
                continue
            pages, generations = _pages(record, group)
            writes = record.writes[record.digested][group]
            book.witness(pages, generations, copy.layers, source[:, group], span, writes)
            at_copy = (Point.DESTINATION, component) in record.digests
            # The host end was read without a lock: it counts only if the pages did not change.
            still = at_copy or (copy.mirror.still(pages, generations, writes) and self._watched())
            if host is None or not still:
                tally.witnessed += layers * len(pages)
                continue
            self._compare_backup(record, component, group, source[:, group], host[:, group], tally)

    def _compare_backup(  # noqa: PLR0917
        self,
        record: CopyRecord,
        component: str,
        group: Flags,
        source: Digests,
        host: Digests,
        tally: _Tally,
    ) -> None:
        after = record.digests.get((Point.SOURCE_AFTER, component))
        self._count(
            record,
            component,
            Mismatch(
                expected=source,
                got=host,
                source_after=None if after is None else after[:, group],
                group=group,
                compared=source.size,
            ),
            tally,
        )

    def _host_end(self, record: CopyRecord, component: str) -> Digests | None:
        """Return the digests of a backup's host end, taken at the copy or now.

        None unless configured.
        """
        copy = record.copy
        taken = record.digests.get((Point.DESTINATION, component))
        host = copy.mirror.host.get(component)
        if taken is not None or host is None or self._settings.checksum is not Checksum.ENDS:
            return taken
        digests = np.zeros((len(copy.layers), int(record.digested.sum())), np.uint64)
        if host.tile_bytes() == copy.mirror.device[component].tile_bytes():
            parts = digest_tiles(
                self._digester, copy, component, Point.DESTINATION, record.digested
            )
            for columns, part in parts:
                digests[:, columns] = part
        return digests

    def _load(self, record: CopyRecord, component: str, book: Book, tally: _Tally) -> None:
        copy, layers = record.copy, len(record.copy.layers)
        destination = record.digests[Point.DESTINATION, component]
        after = record.digests.get((Point.SOURCE_AFTER, component))
        confirmed = record.confirmed.get(component)
        left_out = ~record.digested
        tally.skip(SkipReason.SAMPLED_OUT, layers * int(left_out.sum()))
        for span, group in _groups(copy, record.digested):
            pages, generations = _pages(record, group)
            writes = record.writes[record.digested][group]
            expected = book.expect(pages, generations, copy.layers, span, writes)
            known, got = expected.known, destination[:, group]
            if confirmed is not None:  # the device compared these and did not copy them back
                got = np.where(confirmed[group], expected.digests, got)
            tally.skip(SkipReason.SAMPLED_OUT, layers * int(expected.sampled_out.sum()))
            tally.skip(SkipReason.REUSED, layers * int(expected.reused.sum()))
            told = known | expected.sampled_out | expected.reused
            tally.skip(SkipReason.UNWITNESSED, int((~told).sum()))
            seen = Mismatch(
                # Unknown tiles expect what they got, so that they count as no mismatch.
                expected=np.where(known, expected.digests, got),
                got=got,
                source_after=None if after is None else after[:, group],
                group=group,
                compared=int(known.sum()),
            )
            self._count(record, component, seen, tally)

    def _count(self, record: CopyRecord, component: str, seen: Mismatch, tally: _Tally) -> None:
        bad = int((seen.expected != seen.got).sum())
        tally.mismatched += bad
        tally.verified += seen.compared - bad
        if bad:
            tally.bad += _bad_tiles(record, seen)
            tally.findings.append(
                explain(record, component, seen, self._digester, rank=self._settings.rank)
            )


def _not_judged(record: CopyRecord) -> SkipReason:
    """Return why no tile of the copy can be judged."""
    return SkipReason.FAILED if record.status != "ok" else record.skip or SkipReason.OFF


def _groups(copy: Copy, digested: Flags) -> Iterator[tuple[tuple[int, int], Flags]]:
    """Yield the digested pages grouped by host slot range: ``(range, which digested pages)``."""
    count = int(digested.sum())
    if copy.spans is None:
        yield copy.mirror.whole_page, np.ones(count, np.bool_)
        return
    spans = copy.spans[digested][:, 0:2]
    for first, last in np.unique(spans, axis=0):
        yield (int(first), int(last)), (spans == (first, last)).all(axis=1)


def _pages(record: CopyRecord, group: Flags) -> tuple[np.ndarray, np.ndarray]:
    copy = record.copy
    return copy.host_pages[record.digested][group], copy.generations[record.digested][group]


def _copied(record: CopyRecord, tally: _Tally, rank: int) -> Copied:
    """Build the copy's event from the template of its shape."""
    copy = record.copy
    shape = copy.op is Op.LOAD, copy.token_granular, copy.io_backend, len(copy.layers), rank
    like = copy.mirror.described.get(shape)
    if like is None:
        like = copy.mirror.described[shape] = _of_shape(copy, rank)
    (trace_id, span_id), *others = copy.asked_by
    event: Copied = msgspec.structs.replace(
        like,
        time_ns=record.time_ns,
        h=copy.h,
        d=copy.d,
        pages=len(copy.host_pages),
        bytes=copy.moved_bytes,
        duration_us=record.duration_us,
        verified=tally.verified,
        witnessed=tally.witnessed,
        mismatched=tally.mismatched,
        skipped=tally.skipped,
        op_id=copy.op_id,
        host_pages=_first(copy.host_pages),
        device_pages=_first(copy.device_pages),
        generations=_first(copy.generations),
        trace_id=trace_id,
        span_id=span_id,
        shared_with=tuple(others),
        status=record.status,
        bad_tiles=tuple(tally.bad[:MOST_PAGES_KEPT]),
    )
    return event


def _of_shape(copy: Copy, rank: int) -> Copied:
    """Build the template event: the fields that all copies of one shape on a mirror share."""
    mirror, (source, destination) = copy.mirror, copy.tiers
    return Copied(
        time_ns=0,
        rank=rank,
        pool=mirror.pool,
        op=copy.op,
        token_granular=copy.token_granular,
        layout=mirror.layout,
        h=0,
        d=0,
        slot_page=mirror.slot_page,
        unit=mirror.index_unit,
        pages=0,
        item_bytes=mirror.item_bytes,
        dtype=next(iter(mirror.device.values())).dtype,
        layers=len(copy.layers),
        cls=mirror.host_cls,
        io_backend=copy.io_backend,
        src=source,
        dst=destination,
        bytes=0,
        duration_us=0.0,
    )


def _first(pages: np.ndarray) -> tuple[int, ...]:
    return tuple((pages if len(pages) <= MOST_PAGES_KEPT else pages[:MOST_PAGES_KEPT]).tolist())


def _bad_tiles(record: CopyRecord, seen: Mismatch) -> list[tuple[int, int]]:
    """Return ``(layer, host page)`` of the first tiles that differ."""
    layers, columns = np.nonzero(seen.expected != seen.got)
    pages = record.copy.host_pages[record.digested][seen.group]
    return [
        (int(record.copy.layers[layer]), int(pages[column]))
        for layer, column in zip(layers[:MOST_PAGES_KEPT], columns, strict=False)
    ]
