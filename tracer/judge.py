"""What a copy's digests mean: outcome of every tile, and what is wrong. Runs on the bus's thread."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from hicache_dbg.tracer.checks.content import Mismatch, explain
from hicache_dbg.tracer.events import Copied, Event, Finding, Op, SkipReason
from hicache_dbg.tracer.ledger import Book, Digests, Flags, Ledger
from hicache_dbg.tracer.mirror import Copy
from hicache_dbg.tracer.probe import CopyRecord, Digester, Point, digest_tiles
from hicache_dbg.tracer.settings import Checksum, Settings

__all__ = ["Judge"]

MOST_PAGES_KEPT = 64


@dataclass(slots=True)
class _Tally:
    """Outcomes of one copy's tiles, and its findings."""

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
    """Keeps the ledger and says of every tile of a copy what is known.

    Args:
        settings: how closely to look.
        digester: digests the host end under ``checksum=ends``, and looks again at a mismatch.
        on_finding: called with each finding, on the bus's thread.
    """

    def __init__(
        self,
        settings: Settings,
        digester: Digester,
        *,
        on_finding: Callable[[Finding], None] = lambda _: None,
    ) -> None:
        self.ledger = Ledger()
        self._settings = settings
        self._digester = digester
        self._on_finding = on_finding

    def __call__(self, record: CopyRecord) -> list[Event]:
        """The copy's event, then its findings."""
        tally = _Tally()
        for component in record.copy.mirror.device:
            self._component(record, component, tally)
        for finding in tally.findings:
            self._on_finding(finding)
        return [_copied(record, tally, self._settings.rank), *tally.findings]

    def _component(self, record: CopyRecord, component: str, tally: _Tally) -> None:
        copy = record.copy
        tiles = len(copy.layers) * len(copy.host_pages)
        book = self._book(copy, component)
        reason = _not_judged(record, component)
        if reason is not None:
            if copy.op is Op.BACKUP:
                book.forget(copy.host_pages)
            tally.skip(reason, tiles)
            return
        backup = copy.op is Op.BACKUP
        if _whole(record) and (self._witnessed if backup else self._as_it_should)(
            record, component, book, tally
        ):
            return  # as nearly always
        (self._backup if backup else self._load)(record, component, book, tally)

    def _witnessed(self, record: CopyRecord, component: str, book: Book, tally: _Tally) -> bool:
        """Keep the source's digests of whole pages, where the other end is not to be looked at."""
        looked_at = (Point.DESTINATION, component) in record.digests
        if looked_at or self._settings.checksum is Checksum.ENDS:
            return False
        copy = record.copy
        source = record.digests[Point.SOURCE_BEFORE, component]
        book.witness(copy.host_pages, copy.generations, copy.layers, source, _every_slot(copy))
        tally.witnessed += source.size
        return True

    @staticmethod
    def _as_it_should(record: CopyRecord, component: str, book: Book, tally: _Tally) -> bool:
        """Whether every tile of whole pages is known, and is what arrived."""
        copy, got = record.copy, record.digests[Point.DESTINATION, component]
        if component in record.confirmed:
            return False
        known = book.whole(copy.host_pages, copy.generations, copy.layers, _every_slot(copy))
        if known is None or known.tobytes() != got.tobytes():
            return False
        tally.verified += got.size
        return True

    def _book(self, copy: Copy, component: str) -> Book:
        device = copy.mirror.device[component]
        host = copy.mirror.host.get(component, device)
        return self.ledger.book(copy.mirror, component, device.layers, host.pages)

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
            book.witness(pages, generations, copy.layers, source[:, group], span)
            writes = record.writes[record.digested][group]
            at_copy = (Point.DESTINATION, component) in record.digests
            # Read without a lock: it counts only if the pages are the same afterwards.
            if host is None or not (at_copy or copy.mirror.still(pages, generations, writes)):
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
        """Digests of the host end of a backup, of the copy or taken now; None unless asked for."""
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
            expected = book.expect(pages, generations, copy.layers, span)
            known, got = expected.known, destination[:, group]
            if confirmed is not None:  # the device compared these, and did not send them home
                got = np.where(confirmed[group], expected.digests, got)
            tally.skip(SkipReason.SAMPLED_OUT, layers * int(expected.sampled_out.sum()))
            tally.skip(SkipReason.REUSED, layers * int(expected.reused.sum()))
            told = known | expected.sampled_out | expected.reused
            tally.skip(SkipReason.UNWITNESSED, int((~told).sum()))
            seen = Mismatch(
                # What is not known is taken as it came: it differs from nothing.
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


def _not_judged(record: CopyRecord, component: str) -> SkipReason | None:
    """Why no tile of the copy can be judged; None where they can."""
    if record.status != "ok":
        return SkipReason.FAILED
    if record.skip is not None:
        return record.skip
    point = Point.SOURCE_BEFORE if record.copy.op is Op.BACKUP else Point.DESTINATION
    return None if (point, component) in record.digests else SkipReason.OFF


def _whole(record: CopyRecord) -> bool:
    """Whether the copy is of whole pages, all of which were digested."""
    return record.copy.spans is None and b"\0" not in record.digested.tobytes()


def _every_slot(copy: Copy) -> tuple[int, int]:
    return 0, next(iter(copy.mirror.device.values())).slots_per_page


def _groups(copy: Copy, digested: Flags) -> Iterator[tuple[tuple[int, int], Flags]]:
    """The digested pages by host slot range: (range, which of the digested pages)."""
    count = int(digested.sum())
    if copy.spans is None:
        yield _every_slot(copy), np.ones(count, np.bool_)
        return
    spans = copy.spans[digested][:, 0:2]
    for first, last in np.unique(spans, axis=0):
        yield (int(first), int(last)), (spans == (first, last)).all(axis=1)


def _pages(record: CopyRecord, group: Flags) -> tuple[np.ndarray, np.ndarray]:
    copy = record.copy
    return copy.host_pages[record.digested][group], copy.generations[record.digested][group]


def _copied(record: CopyRecord, tally: _Tally, rank: int) -> Copied:
    copy = record.copy
    source, destination = copy.tiers
    device = next(iter(copy.mirror.device.values()))
    (trace_id, span_id), *others = copy.asked_by
    return Copied(
        time_ns=record.time_ns,
        rank=rank,
        pool=copy.mirror.pool,
        op=copy.op,
        token_granular=copy.token_granular,
        layout=copy.mirror.layout,
        h=copy.h,
        d=copy.d,
        slot_page=copy.mirror.slot_page,
        unit=copy.mirror.index_unit,
        pages=len(copy.host_pages),
        item_bytes=copy.mirror.item_bytes,
        dtype=device.dtype,
        layers=len(copy.layers),
        cls=copy.mirror.host_cls,
        io_backend=copy.io_backend,
        src=source,
        dst=destination,
        bytes=copy.moved_bytes,
        duration_us=record.duration_us,
        verified=tally.verified,
        witnessed=tally.witnessed,
        mismatched=tally.mismatched,
        skipped=tally.skipped,
        op_id=copy.op_id,
        host_pages=tuple(copy.host_pages[:MOST_PAGES_KEPT].tolist()),
        device_pages=tuple(copy.device_pages[:MOST_PAGES_KEPT].tolist()),
        generations=tuple(copy.generations[:MOST_PAGES_KEPT].tolist()),
        trace_id=trace_id,
        span_id=span_id,
        shared_with=tuple(others),
        status=record.status,
        bad_tiles=tuple(tally.bad[:MOST_PAGES_KEPT]),
    )


def _bad_tiles(record: CopyRecord, seen: Mismatch) -> list[tuple[int, int]]:
    """Layer and host page of the first tiles that differ."""
    layers, columns = np.nonzero(seen.expected != seen.got)
    pages = record.copy.host_pages[record.digested][seen.group]
    return [
        (int(record.copy.layers[layer]), int(pages[column]))
        for layer, column in zip(layers[:MOST_PAGES_KEPT], columns, strict=False)
    ]
