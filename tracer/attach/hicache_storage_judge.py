"""Judge the digests and results of storage operations, on the bus's thread."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from hicache_dbg.tracer.attach.hicache_storage_record import StorageRecord, Tiles
from hicache_dbg.tracer.checks.storage import (
    CHECK,
    Contents,
    Fault,
    Stored,
    TierState,
    of_failure,
    of_other_bytes,
)
from hicache_dbg.tracer.digest.cpu import CpuDigester
from hicache_dbg.tracer.events import DIRECTION, Copied, Event, Finding, Op, Outcome, SkipReason
from hicache_dbg.tracer.ledger import Book
from hicache_dbg.tracer.mirror import MirrorViews, in_hex
from hicache_dbg.tracer.session import Session
from hicache_dbg.tracer.words import counted, named

__all__ = ["StorageJudge"]

MOST_PAGES_KEPT = 64
FEW = 8
Verdict = Outcome | SkipReason
"""The verdict on a page: all its tiles cross a store together."""


class StorageJudge:
    """Remembers what was stored under each key, and judges every page that comes back.

    The digest of all bytes of a page, also found in its record's header, vouches for the page as a
    whole. Its tiles keep the digests from their backup. Those return to the ledger with the page, so
    a load is compared with what originally left the device, whatever happened in between.

    After a gap (an operation that was not recorded, tracing switched off) it starts over: a key may
    have been stored again since, with other contents.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._contents = Contents()
        self._tiers: defaultdict[object, TierState] = defaultdict(TierState)  # by store
        self._digester = CpuDigester()
        session.on_gap.append(self.forget)

    def forget(self) -> None:
        """Forget what was stored under every key."""
        self._contents = Contents()

    def knows(self, record: StorageRecord, at: int) -> bool:
        """Return whether a page holds what this process stored under its key. Thread-safe."""
        stored = self._stored(record, at)
        return stored is not None and stored.payload == record.payloads.get(at)

    def __call__(self, record: StorageRecord) -> list[Event]:
        """Return the events of an operation, and its findings."""
        if record.after_gap:
            self.forget()
        verdicts = [self._page(record, at) for at in range(len(record.keys))]
        wrong = [at for at, verdict in enumerate(verdicts) if verdict is Outcome.MISMATCHED]
        findings = [
            *self._failures(record),
            *(finding for at in wrong for finding in self._other_bytes(record, at)),
            *self._findings(record, self._tiers[record.store].fallback(record.fallback), ()),
        ]
        record.judged = True
        rank = self._session.settings.rank
        copies = [_copied(record, mirror, Counter(verdicts), rank) for mirror in record.mirrors]
        return [*copies, *findings]

    def looked_up(
        self, store: object, names: Sequence[str], found: int, evicted: int | None, *, pool: str
    ) -> list[Finding]:
        """Note a lookup of ``names`` in ``store``, which claims to have the first ``found`` of them."""
        known = sum(
            page is not None and page.store is store for page in map(self._contents.get, names)
        )
        fault = self._tiers[store].looked_up(max(known, found), found, evicted)
        return [] if fault is None else [self._finding(fault, pool, Op.FETCH, time.time_ns())]

    def gave_up(self, kind: str, why: str, *, pool: str, time_ns: int) -> list[Finding]:
        """Note that the engine stopped waiting for the store."""
        return [self._finding(TierState.gave_up(why), pool, Op(kind), time_ns)]

    # -- one page -----------------------------------------------------------------------------

    def _page(self, record: StorageRecord, at: int) -> Verdict:
        verdict = self._judged(record, at)
        if record.op is Op.FETCH:
            trusted = verdict in {Outcome.VERIFIED, Outcome.WITNESSED}
            self._enter(record, at, self._tiles(record, at) if trusted else {})
        elif verdict is Outcome.WITNESSED:
            self._keep(record, at)
        elif record.status != "ok":  # a store that did not end: the key may have either contents
            self._contents.drop(record.keys[at].name)
        return verdict

    def _judged(self, record: StorageRecord, at: int) -> Verdict:
        if not record.results[at].good:
            return SkipReason.FAILED
        if not record.chosen[at]:
            return SkipReason.OFF if record.off else SkipReason.SAMPLED_OUT
        return Outcome.WITNESSED if record.op is Op.STORE else self._compared(record, at)

    def _stored(self, record: StorageRecord, at: int) -> Stored | None:
        """Return what is known of the page that this store has under the page's key.

        None if another process wrote the record, or it was replaced since: another batch may
        compute other bytes for the same tokens. The record's own header vouches for it then.
        """
        key, theirs = record.keys[at], record.results[at].digest
        stored = self._contents.get(key.name)
        if stored is None or stored.store is not record.store:
            return None
        another = theirs and stored.payload and theirs != stored.payload
        return None if another and stored.tokens == key.tokens else stored

    def _compared(self, record: StorageRecord, at: int) -> Verdict:
        """Compare a fetched page with what was stored, or else with its record's header."""
        key, stored = record.keys[at], self._stored(record, at)
        if stored is not None and stored.tokens != key.tokens:
            return Outcome.MISMATCHED  # intact, but the bytes of another page
        expected = stored.payload if stored is not None else record.results[at].digest
        if not expected:
            return Outcome.WITNESSED
        got = record.payloads.get(at)
        if got is None:
            got = record.payload_now(at)
            if not self._still(record, at):
                got = record.payloads.get(at)  # whoever freed it meanwhile has read it
        if got is None:
            return SkipReason.REUSED
        return Outcome.VERIFIED if got == expected else Outcome.MISMATCHED

    def _still(self, record: StorageRecord, at: int) -> bool:
        """Return whether the host page is unchanged, as far as its writes were counted."""
        return record.still(at) and self._session.watched()

    def _keep(self, record: StorageRecord, at: int) -> None:
        """Remember a stored page; keep an earlier entry, as the store keeps an existing record.

        If no digest in the record's header tells which of two contents the store has, neither is
        expected.
        """
        key = record.keys[at]
        known = self._contents.get(key.name)
        payload = record.payloads.get(at, record.results[at].digest)
        if known is not None and known.store is record.store:
            unvouched = known.tokens == key.tokens and not record.results[at].digest
            if unvouched and known.payload != payload:  # left alone, or evicted in between
                self._contents.keep(key.name, Stored(key.tokens, 0, 0, {}, record.store))
            return
        tiles: Tiles = {}
        page, generation = record.host[at : at + 1], record.generations[at : at + 1]
        for mirror, component, book in self._books(record):
            span = (0, mirror.device[component].slots_per_page)
            layers = tuple(range(mirror.device[component].layers))
            expected = book.expect(page, generation, layers, span)
            if expected.known.all():
                tiles[mirror.pool, component] = expected.digests[:, 0]
        page_now = Stored(key.tokens, payload, record.after.get(at, 0), tiles, record.store)
        self._contents.keep(key.name, page_now)

    def _tiles(self, record: StorageRecord, at: int) -> Tiles:
        """Return the digests that the page's tiles should have from here on."""
        stored = self._stored(record, at)
        known = stored.tiles if stored is not None else record.tiles.get(at, {})
        missing = [item for item in self._books(record) if (item[0].pool, item[1]) not in known]
        if not missing:
            return known
        now = self.tiles_now(record, at)
        return now | known if self._still(record, at) else known

    def tiles_now(self, record: StorageRecord, at: int) -> Tiles:
        """Digest the tiles that the host page holds now. Thread-safe."""
        page = record.host[at : at + 1]
        return {
            (mirror.pool, name): self._digester.digest(view, range(view.layers), page)[:, 0]
            for mirror in record.mirrors
            for name, view in mirror.host.items()
        }

    def _enter(self, record: StorageRecord, at: int, tiles: Tiles) -> None:
        """Tell the ledger what a fetched host page should hold, or to forget it if that is unknown."""
        page, generation = record.host[at : at + 1], record.generations[at : at + 1]
        for mirror, component, book in self._books(record):
            digests = tiles.get((mirror.pool, component))
            if digests is None:
                book.forget(page)
                continue
            span = (0, mirror.device[component].slots_per_page)
            book.witness(page, generation, tuple(range(len(digests))), digests[:, None], span)

    def _books(self, record: StorageRecord) -> Iterator[tuple[MirrorViews, str, Book]]:
        """Yield the ledger's books of all components whose host and device tiles are comparable."""
        for mirror in record.mirrors:
            for component, view in mirror.host.items():
                device = mirror.device.get(component)
                if device is not None and device.tile_bytes() == view.tile_bytes():
                    ledger = self._session.judge.ledger
                    yield (
                        mirror,
                        component,
                        ledger.book(mirror, component, device.layers, view.pages),
                    )

    # -- findings -----------------------------------------------------------------------------

    def _failures(self, record: StorageRecord) -> Iterator[Finding]:
        groups: dict[Fault, list[int]] = {}
        for at, end in enumerate(record.results):
            if not end.good and at not in record.let_go:
                fault = of_failure(end.state, end.reason, end.errno, end.expected, end.got)
                groups.setdefault(fault, []).append(at)
        for fault, pages in groups.items():
            yield from self._findings(record, fault, pages)

    def _other_bytes(self, record: StorageRecord, at: int) -> list[Finding]:
        """Return the findings for a page that was reported as good and is not."""
        key, stored = record.keys[at], self._stored(record, at)
        after = record.after.get(at, 0)
        delivered = stored is not None and after == stored.sample
        untouched = record.before.get(at) == after and not delivered
        # For two pages with one name, a store may deliver one of them and report both.
        twins = (k for k in record.keys if k.name == key.name and k.tokens != key.tokens)
        twin = next((Stored(k.tokens, 0, 0, {}) for k in twins), stored)
        fault = of_other_bytes(twin, key.tokens, untouched=untouched)
        where, layer = "", -1
        if stored is not None and stored.tiles:
            now = record.tiles.get(at) or self.tiles_now(record, at)
            bad = {
                name: np.flatnonzero(now[name] != tiles)
                for name, tiles in stored.tiles.items()
                if (now[name] != tiles).any()
            }
            if bad and (at in record.tiles or self._still(record, at)):
                layer = int(next(iter(bad.values()))[0])
                where = " in " + ", ".join(
                    f"{pool}.{component} ({named('layer', layers.tolist())})"
                    for (pool, component), layers in bad.items()
                )
        return self._findings(record, fault, [at], where, layer)

    def _findings(
        self,
        record: StorageRecord,
        fault: Fault | None,
        at: Sequence[int],
        where: str = "",
        layer: int = -1,
    ) -> list[Finding]:
        if fault is None:
            return []
        text, pages = where, tuple(record.host[list(at)].tolist())
        if at:
            first = record.keys[at[0]].name
            text = f"{where}; {len(at)} of {counted(len(record.keys), 'page')}, first key {first}"
        op, when = record.op, record.time_ns
        return [self._finding(fault, record.pools, op, when, text, pages, layer, record.op_id)]

    def _finding(  # noqa: PLR0917 - the fields of one finding
        self,
        fault: Fault,
        pool: str,
        op: Op,
        time_ns: int,
        text: str = "",
        pages: tuple[int, ...] = (),
        layer: int = -1,
        op_id: int = 0,
    ) -> Finding:
        return Finding(
            time_ns=time_ns,
            rank=self._session.settings.rank,
            cls=fault.cls,
            pool=pool,
            op=op.value,
            layer=layer,
            pages=pages[:FEW],
            page_count=len(pages),
            expected=fault.expected,
            got=fault.got,
            message=f"{pool}: {op}: {fault.cause}{text}",
            advice=fault.advice,
            check=CHECK,
            op_id=op_id,
        )


def _copied(
    record: StorageRecord, mirror: MirrorViews, verdicts: "Counter[Verdict]", rank: int
) -> Copied:
    source, destination = DIRECTION[record.op]
    views = tuple(mirror.host.values())
    tiles = sum(view.layers for view in views)
    good = len(record.keys) - verdicts[SkipReason.FAILED]
    (trace_id, span_id), *others = in_hex(record.requests)
    return Copied(
        time_ns=record.time_ns,
        rank=rank,
        pool=mirror.pool,
        op=record.op,
        token_granular=False,
        layout=mirror.layout,
        h=len(record.host) * mirror.slot_page,
        d=0,
        slot_page=mirror.slot_page,
        unit=mirror.index_unit,
        pages=len(record.host),
        item_bytes=mirror.item_bytes,
        dtype=views[0].dtype,
        layers=views[0].layers,
        cls=mirror.host_cls,
        io_backend=f"{record.backend}_staged" if record.fallback else record.backend,
        src=source,
        dst=destination,
        bytes=good * sum(view.page_span * view.layers for view in views),
        duration_us=record.duration_us,
        verified=tiles * verdicts[Outcome.VERIFIED],
        witnessed=tiles * verdicts[Outcome.WITNESSED],
        mismatched=tiles * verdicts[Outcome.MISMATCHED],
        skipped={
            reason.value: tiles * count
            for reason, count in verdicts.items()
            if isinstance(reason, SkipReason)
        },
        op_id=record.op_id,
        host_pages=tuple(record.host[:MOST_PAGES_KEPT].tolist()),
        generations=tuple(record.generations[:MOST_PAGES_KEPT].tolist()),
        trace_id=trace_id,
        span_id=span_id,
        shared_with=tuple(others),
        status=_status(record),
    )


def _status(record: StorageRecord) -> str:
    """Return ``ok``, or the state of the first page that failed, with its errno."""
    bad = [end for end in record.results if not end.good]
    if record.status != "ok" or not bad:
        return record.status
    errno = f" (errno {bad[0].errno})" if bad[0].errno else ""
    return f"{len(bad)} of {len(record.results)} pages {bad[0].state}: {bad[0].reason}{errno}"
