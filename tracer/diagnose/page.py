"""From a run's events to the page that shows them."""

from collections.abc import Iterator

from hicache_dbg import __version__
from hicache_dbg.exporters.html.page import Bar, Geometry, Item, Page, Table
from hicache_dbg.tracer.diagnose.database import Database
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.grids import grids_of
from hicache_dbg.tracer.diagnose.hypothesis import Answer, Verdict
from hicache_dbg.tracer.diagnose.report import Report
from hicache_dbg.tracer.diagnose.story import story_of
from hicache_dbg.tracer.events import ComponentInfo, MirrorInfo

__all__ = ["page_of"]


def page_of(database: Database, evidence: Evidence, report: Report, source: str) -> Page:
    """The page; ``source`` says where the events came from."""
    first = next((one for one in report.hypotheses if one.verdict is Verdict.CONFIRMED), None)
    tiles = report.tiles
    return Page(
        verdict=report.verdict,
        state="bad" if report.corrupt else "good" if _innocent(report) else "unknown",
        advice=first.advice if first else "",
        tiles=(
            ("compared, equal", tiles.verified, "VERIFIED"),
            ("backed up, not read back yet", tiles.witnessed, "WITNESSED"),
            ("differ", tiles.mismatched, "MISMATCHED"),
            ("not looked at", tiles.skipped, "SKIPPED"),
        ),
        findings=[
            Item(
                label=one.cls,
                title=f"{one.pool} at {one.op or one.check}"
                + (f", {one.count} times" if one.count > 1 else ""),
                text=one.message,
                advice=one.advice,
            )
            for one in report.findings
        ],
        hypotheses=[_asked(answer) for answer in report.hypotheses],
        grids=list(grids_of(database)),
        story=story_of(database, evidence),
        geometry=[*_geometry(report.mirrors)],
        paths=Table(
            headings=("pool", "operation", "token_granular", "layout", "copies"),
            rows=[
                (p.pool, p.op, str(p.token_granular), p.layout, f"{p.count:,}")
                for p in report.paths
            ],
            numbers=("copies",),
        ),
        unchecked=[*_unchecked(evidence, report)],
        source=source,
        version=__version__,
    )


def _innocent(report: Report) -> bool:
    return any(
        one.name == "copies_are_innocent" and one.verdict is Verdict.CONFIRMED
        for one in report.hypotheses
    )


def _asked(answer: Answer) -> Item:
    advice = answer.advice or (answer.decide_by and f"to decide it: {answer.decide_by}")
    return Item(
        label=answer.verdict.value, title=answer.question, text=answer.evidence, advice=advice
    )


def _geometry(mirrors: list[MirrorInfo]) -> Iterator[Geometry]:
    """Both ends of each component; those that differ first."""
    drawn = [
        _drawn(mirror, part, other)
        for mirror in mirrors
        for part in mirror.device.components
        for other in mirror.host.components
        if part.name == other.name
    ]
    yield from sorted(drawn, key=lambda one: not one.note)


def _drawn(mirror: MirrorInfo, device: ComponentInfo, host: ComponentInfo) -> Geometry:
    longest = max(device.slot_bytes, host.slot_bytes)
    ends = [
        Bar(f"{tier}, {cls}, {part.dtype}", part.slot_bytes, part.slot_bytes / longest)
        for tier, cls, part in (
            ("device", mirror.device.cls, device),
            ("host", mirror.host.cls, host),
        )
    ]
    note = ""
    if device.slot_bytes != host.slot_bytes:
        note = (
            f"A page of {mirror.device.slots_per_page} slots has {device.page_bytes:,} B on the device and "
            f"{host.page_bytes:,} B on the host: what does not fit is never copied."
        )
    elif device.page_bytes != host.page_bytes:
        note = f"A page has {device.page_bytes:,} B on the device and {host.page_bytes:,} B on the host."
    name = mirror.pool if len(mirror.device.components) == 1 else f"{mirror.pool}.{device.name}"
    return Geometry(title=name, ends=ends, note=note)


def _unchecked(evidence: Evidence, report: Report) -> Iterator[str]:
    """Everything that a reader must not take for checked."""
    for reason, count in sorted(report.skipped.items()):
        if count:
            yield f"{count:,} tiles that moved were not looked at: {reason}"
    if report.tiles.witnessed:
        yield (
            f"{report.tiles.witnessed:,} tiles were backed up under a digest: a later load is "
            "compared with it, a page that never comes back is not"
        )
    if evidence.unseen:
        yield f"{evidence.unseen:,} operations were traced and are not in these events"
    for name in sorted(evidence.unrecognised):
        yield f"not attached to: {name}"
    yield "what runs on the device between copies: a kernel that writes a wrong value into a page is copied faithfully"
