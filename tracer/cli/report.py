"""What a run comes to, as data: the shape of ``--json`` and the source of what is printed."""

from typing import Any

import msgspec

from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Answer, Verdict, ask_all
from hicache_dbg.tracer.events import Finding, MirrorInfo

__all__ = ["Report", "build_report"]


class Report(msgspec.Struct, kw_only=True):
    """Paths, tiles, findings, geometry and hypotheses; ``repro`` adds what it knows of sessions."""

    verdict: str
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


def build_report(evidence: Evidence) -> Report:
    """Everything that ``evidence`` supports, hypotheses included."""
    tiles, health, answers = evidence.tiles, evidence.health, ask_all(evidence)
    return Report(
        verdict=_verdict(answers),
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
        findings=[_finding(finding) for finding in evidence.kinds_of_finding()],
        hypotheses=answers,
        mirrors=list(evidence.mirrors.values()),
        classes_built=sorted(evidence.classes_built),
        classes_unbuilt=sorted(evidence.classes_unbuilt),
        checked_share=evidence.checked_share,
        dropped=health.dropped if health else {},
        internal_errors=health.errors if health else {},
    )


def _verdict(answers: list[Answer]) -> str:
    """The first confirmed hypothesis, as one sentence; what is open where none is."""
    for answer in answers:
        if answer.verdict is Verdict.CONFIRMED:
            return f"{answer.words}: {answer.evidence}"
    return "nothing is confirmed: see what is undecided and how to decide it"


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
