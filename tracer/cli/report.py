"""What a run comes to, as data: the shape of ``--json`` and the source of what is printed."""

from typing import Any

import msgspec

from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Answer, ask_all
from hicache_dbg.tracer.events import Finding, MirrorInfo

__all__ = ["Report", "build_report", "merged_findings"]


class Report(msgspec.Struct, kw_only=True):
    """Paths, tiles, findings, geometry and hypotheses; ``repro`` adds what it knows of sessions."""

    tiles: dict[str, int]
    skipped: dict[str, int]
    paths: list[dict[str, Any]]
    findings: list[dict[str, Any]]
    hypotheses: list[Answer]
    mirrors: list[MirrorInfo]
    classes_built: list[str]
    classes_unbuilt: list[str]
    checked_share: float
    dropped: dict[str, int]
    internal_errors: dict[str, int]


def merged_findings(findings: list[Finding]) -> list[Finding]:
    """Findings of a kind (class, pool, op, component, check) as one, with how many there were.

    The first one's text stands; what the bus held back comes later with its count.
    """
    merged: dict[tuple[str, ...], Finding] = {}
    for finding in findings:
        key = (finding.cls, finding.pool, finding.op, finding.component, finding.check)
        first = merged.get(key)
        merged[key] = (
            finding
            if first is None
            else msgspec.structs.replace(first, count=first.count + finding.count)
        )
    return list(merged.values())


def build_report(evidence: Evidence) -> Report:
    """Everything that ``evidence`` supports, hypotheses included."""
    tiles, health = evidence.tiles, evidence.health
    return Report(
        tiles={
            "moved": tiles.moved,
            "verified": tiles.verified,
            "witnessed": tiles.witnessed,
            "mismatched": tiles.mismatched,
            "skipped": tiles.skipped,
        },
        skipped=dict(evidence.skipped),
        paths=[
            {
                "pool": pool,
                "op": op,
                "token_granular": granular,
                "layout": layout,
                "count": count,
            }
            for (pool, op, granular, layout), count in sorted(evidence.paths.items())
        ],
        findings=[_finding(finding) for finding in merged_findings(evidence.findings)],
        hypotheses=ask_all(evidence),
        mirrors=list(evidence.mirrors.values()),
        classes_built=sorted(evidence.classes_built),
        classes_unbuilt=sorted(evidence.classes_unbuilt),
        checked_share=evidence.checked_share,
        dropped=health.dropped if health else {},
        internal_errors=health.errors if health else {},
    )


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "class": finding.cls.value,
        "pool": finding.pool,
        "op": finding.op,
        "component": finding.component,
        "layer": finding.layer,
        "pages": list(finding.pages),
        "slots": finding.slots,
        "expected": finding.expected,
        "got": finding.got,
        "message": finding.message,
        "advice": finding.advice,
        "check": finding.check,
        "count": finding.count,
    }
