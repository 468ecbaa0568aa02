"""The result of a run as data: the shape of ``--json`` and the source of everything shown."""

from collections.abc import Sequence

import msgspec

from hicache_dbg.tracer.diagnose.by_class import briefly
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Answer, Hypothesis, Verdict, ask_all
from hicache_dbg.tracer.events import Finding, MirrorInfo

__all__ = ["FindingRow", "PathRow", "Report", "TileCounts", "build_report", "verdict_of"]


class TileCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Tiles by outcome; the four outcomes add up to ``moved``."""

    moved: int
    verified: int
    witnessed: int
    mismatched: int
    skipped: int


class PathRow(msgspec.Struct, frozen=True, kw_only=True):
    """A path that copies took, and how many did."""

    pool: str
    op: str
    token_granular: bool
    layout: str
    count: int


class FindingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of finding: the text of the first one, and their number."""

    cls: str = msgspec.field(name="class")
    pool: str
    op: str
    component: str
    layer: int
    pages: tuple[int, ...]
    slots: str
    expected: str
    got: str
    message: str
    advice: str
    check: str
    count: int


class Report(msgspec.Struct, kw_only=True):
    """Paths, tiles, findings, geometry and hypotheses; ``repro`` adds session results."""

    verdict: str
    #: Empty too if a process that still runs older code made the report.
    advice: str = ""
    tiles: TileCounts
    skipped: dict[str, int]
    paths: list[PathRow]
    findings: list[FindingRow]
    hypotheses: list[Answer]
    mirrors: list[MirrorInfo]
    classes_built: list[str]
    classes_unbuilt: list[str]
    checked_share: float
    dropped: dict[str, int]
    internal_errors: dict[str, int]

    @property
    def corrupt(self) -> bool:
        """Whether anything says that the cache did not keep every byte, or will not.

        A confirmed cause is enough: its finding may be in a part that was not read.
        """
        caused = any(one.cause for one in self.hypotheses if one.verdict is Verdict.CONFIRMED)
        return bool(self.findings or self.tiles.mismatched or caused)


def build_report(evidence: Evidence, asked: Sequence[Hypothesis] | None = None) -> Report:
    """Report everything ``evidence`` supports; ``asked`` are the hypotheses (default: all)."""
    tiles, health, answers = evidence.tiles, evidence.health, ask_all(evidence, asked)
    verdict, advice = verdict_of(evidence, answers)
    return Report(
        verdict=verdict,
        advice=advice,
        tiles=TileCounts(
            moved=tiles.moved,
            verified=tiles.verified,
            witnessed=tiles.witnessed,
            mismatched=tiles.mismatched,
            skipped=tiles.skipped,
        ),
        skipped=dict(evidence.skipped),
        paths=[
            PathRow(pool=pool, op=op, token_granular=granular, layout=layout, count=count)
            for (pool, op, granular, layout), count in sorted(evidence.paths.items())
        ],
        findings=[_finding(finding) for finding in evidence.kinds_of_finding()],
        hypotheses=answers,
        mirrors=evidence.mirrors,
        classes_built=sorted(evidence.classes_built),
        classes_unbuilt=sorted(evidence.classes_unbuilt),
        checked_share=evidence.checked_share,
        dropped=health.dropped if health else {},
        internal_errors={**(health.errors if health else {}), **evidence.errors},
    )


def verdict_of(evidence: Evidence, answers: Sequence[Answer]) -> tuple[str, str]:
    """Return the verdict as one sentence, and what to do about it.

    It is the first confirmed hypothesis. If no confirmed one names a cause, a finding speaks for
    itself and precedes hypotheses that only add to a cause.
    """
    confirmed = [one for one in answers if one.verdict is Verdict.CONFIRMED]
    causes = evidence.causes()
    if causes and not any(one.rank == 0 for one in confirmed):
        return f"{causes[0].cls}: {briefly(causes[0])}", causes[0].advice
    if confirmed:
        return f"{confirmed[0].words}: {confirmed[0].evidence}", confirmed[0].advice
    return "nothing is confirmed: see what is undecided and how to decide it", ""


def _finding(finding: Finding) -> FindingRow:
    same = {name: getattr(finding, name) for name in FindingRow.__struct_fields__ if name != "cls"}
    return FindingRow(cls=finding.cls.value, **same)
