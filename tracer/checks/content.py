"""Explain why a tile's bytes are wrong, from what is known of one copy."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hicache_dbg.tracer.checks.one_item import is_displaced, moved_instead
from hicache_dbg.tracer.checks.slot_digests import differing_slots, tile_digest
from hicache_dbg.tracer.checks.slots import never_copied, slots_beyond
from hicache_dbg.tracer.events import FaultClass, Finding, Op
from hicache_dbg.tracer.ledger import Digests, Flags
from hicache_dbg.tracer.probe import CopyRecord, Digester
from hicache_dbg.tracer.words import counted, named, ranges

__all__ = ["Mismatch", "explain"]

CHECK = "bytes"
FEW = 8


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Digests of some pages of one component that do not all agree.

    ``expected``, ``got`` and ``source_after`` are uint64 ``[layers, pages]``; ``group`` says which
    of the copy's digested pages they belong to; ``compared`` is how many tiles had something to
    compare with.
    """

    expected: Digests
    got: Digests
    source_after: Digests | None
    group: Flags
    compared: int


@dataclass(frozen=True, slots=True)
class _Case:
    """One mismatching copy, with its first bad tile."""

    record: CopyRecord
    component: str
    seen: Mismatch
    digester: Digester
    layer_at: int
    page_at: int

    @property
    def layer(self) -> int:
        return self.record.copy.layers[self.layer_at]

    def _page(self, pages: np.ndarray) -> int:
        return int(pages[self.record.digested][self.seen.group][self.page_at])

    @property
    def host_page(self) -> int:
        return self._page(self.record.copy.host_pages)

    @property
    def device_page(self) -> int:
        return self._page(self.record.copy.device_pages)

    def host_end(self) -> int | None:
        """Return the host's digest of a load's first bad tile: taken after the load, or else now.

        None if the page was written again or reallocated since.
        """
        copy, after = self.record.copy, self.seen.source_after
        if after is not None:
            return int(after[self.layer_at, self.page_at])
        page = np.array([self.host_page], np.int64)
        digest = self.digester.digest(copy.mirror.host[self.component], (self.layer,), page)
        generation = np.array([self._page(copy.generations)])
        writes = np.array([self._page(self.record.writes)])
        same = copy.mirror.still(page, generation, writes)
        return int(digest[0, 0]) if same else None

    def source_since(self) -> int | None:
        """Return the source's digest of a backup's first bad tile: taken after the copy, or now.

        A digest taken now may be of a reallocated page, so it is None unless it equals the one from
        before the copy.
        """
        copy, after = self.record.copy, self.seen.source_after
        if after is not None:
            return int(after[self.layer_at, self.page_at])
        if copy.spans is not None:
            return None
        view, before = copy.mirror.device[self.component], self.seen.expected
        now = tile_digest(self.digester, view, self.layer, self.device_page)
        return now if now == int(before[self.layer_at, self.page_at]) else None

    def slots(self) -> str:
        """Return the slots of the first bad tile that differ between its two ends, as ranges.

        Empty if that cannot be told: the ends differ in width, both hold the same wrong bytes, or
        one of them has changed since.
        """
        copy = self.record.copy
        host, device = copy.mirror.host.get(self.component), copy.mirror.device[self.component]
        if host is None or copy.spans is not None or host.tile_bytes() != device.tile_bytes():
            return ""
        ends = (host, self.layer, self.host_page), (device, self.layer, self.device_page)
        now = {tile_digest(self.digester, *end) for end in ends}
        bad = {int(d[self.layer_at, self.page_at]) for d in (self.seen.expected, self.seen.got)}
        return ranges(differing_slots(self.digester, *ends), most=64) if now == bad else ""


Verdict = tuple[FaultClass, str, str, str]  # class, cause, slots, advice


def _absent(case: _Case) -> Verdict | None:
    mirror = case.record.copy.mirror
    if case.component in mirror.host:
        return None
    cause = (
        f"the host pool {mirror.host_cls} has no mirror of {case.component}, so it is never copied"
    )
    return (
        FaultClass.SIDECAR_MISSING,
        cause,
        "",
        "mirror the component with the pages it belongs to",
    )


def _geometry(case: _Case) -> Verdict | None:
    mirror = case.record.copy.mirror
    device, host = mirror.device[case.component], mirror.host[case.component]
    beyond = slots_beyond(device, host.page_span)
    shorter = host.page_span <= device.page_span  # harmless if only padding is cut off
    if device.tile_bytes() == host.tile_bytes() and shorter and not beyond:
        return None
    cause = (
        f"the host mirror ({mirror.host_cls}) holds {host.slot_bytes} B a slot, {host.page_span} B a page, "
        f"the device {device.slot_bytes} B a slot, {device.page_span} B a page"
    )
    if is_displaced(mirror, device, host):
        cause += f"; {moved_instead(mirror, device, host)}"
        beyond = []
    elif beyond:
        cause += f"; {never_copied('slot', beyond)}, so older bytes stay there"
    advice = f"size {mirror.host_cls} from the device tensor's dtype and shape"
    return FaultClass.ROW_WIDTH, cause, ranges(beyond, most=64), advice


def _source_changed(case: _Case) -> Verdict | None:
    if case.record.copy.op is not Op.BACKUP:
        return None
    if case.source_since() in {None, int(case.seen.expected[case.layer_at, case.page_at])}:
        return None
    cause = "the source changed while it was copied: the copy did not wait for the last writer"
    return FaultClass.STORE_BEFORE_WRITE, cause, "", "wait for the writer's event before the backup"


def _not_delivered(case: _Case) -> Verdict | None:
    if case.record.copy.op is Op.BACKUP:
        cause = (
            "the source kept its bytes and the destination holds others: the copy did not deliver"
            if case.source_since() is not None
            else "the destination does not hold what the source held before the copy, and the source has "
            "moved on since"
        )
        advice = "look at the copy's completion status"
        if case.seen.source_after is None:  # read after the copy, by another thread
            cause += (
                ", or something wrote over it before it was read (HICACHE_DBG_CHECKSUM=three tells)"
            )
            advice = "run with HICACHE_DBG_CHECKSUM=three"
        return FaultClass.FAILED_LOAD, cause, "", advice
    if case.host_end() != int(case.seen.expected[case.layer_at, case.page_at]):
        return None
    cause = (
        "the host page holds the right bytes and the device page does not: the load did not deliver"
    )
    return FaultClass.FAILED_LOAD, cause, "", "look at the load's completion status and its gate"


def _host_changed(case: _Case) -> Verdict | None:
    if case.host_end() is None:
        cause = (
            "the host page has been given away since, so which end changed cannot be told any more "
            "(HICACHE_DBG_CHECKSUM=three looks at both at once)"
        )
        return FaultClass.BIT_FLIP, cause, "", "run with HICACHE_DBG_CHECKSUM=three"
    cause = (
        "the load delivered what the host page holds, and that is not what was backed up: the page changed "
        "at rest or was stored wrong (HICACHE_DBG_CHECKSUM=ends tells which)"
    )
    advice = "run with HICACHE_DBG_CHECKSUM=ends; look at the GPU's ECC counters"
    return FaultClass.BIT_FLIP, cause, "", advice


#: In order: the first that applies names the cause.
_CAUSES: tuple[Callable[[_Case], Verdict | None], ...] = (
    _absent,
    _geometry,
    _source_changed,
    _not_delivered,
    _host_changed,
)


def explain(
    record: CopyRecord, component: str, seen: Mismatch, digester: Digester, *, rank: int = 0
) -> Finding:
    """Return one finding for all mismatching tiles of a component in one copy."""
    bad = seen.expected != seen.got
    layer_at, page_at = (int(axis[0]) for axis in np.nonzero(bad))
    case = _Case(record, component, seen, digester, layer_at, page_at)
    cls, cause, slots, advice = next(v for check in _CAUSES if (v := check(case)) is not None)
    if not slots and (slots := case.slots()):
        cause += f"; of the first bad tile slots {slots} differ"
    copy = record.copy
    pages = copy.host_pages[record.digested][seen.group][bad.any(axis=0)]
    layers = [copy.layers[i] for i in np.nonzero(bad.any(axis=1))[0]]
    expected, got = (int(d[layer_at, page_at]) for d in (seen.expected, seen.got))
    trace_id, span_id = copy.asked_by[0]
    return Finding(
        time_ns=record.time_ns,
        rank=rank,
        cls=cls,
        pool=copy.mirror.pool,
        op=copy.op.value,
        component=component,
        layer=case.layer,
        pages=tuple(pages[:FEW].tolist()),
        page_count=len(pages),
        slots=slots,
        expected=f"{expected:016x}",
        got=f"{got:016x}",
        message=(
            f"{copy.mirror.pool}.{component}: {int(bad.sum())} of "
            f"{counted(seen.compared, 'tile')} of this {copy.op} differ "
            f"({named('layer', layers)}; {named('host page', pages[:FEW].tolist())}"
            f"{f' and {len(pages) - FEW} more' if len(pages) > FEW else ''}; first: layer {case.layer}, "
            f"host page {case.host_page}, device page {case.device_page}): {cause}"
        ),
        advice=advice,
        check=CHECK,
        op_id=copy.op_id,
        trace_id=trace_id,
        span_id=span_id,
    )
