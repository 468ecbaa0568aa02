"""A race that wider rows make more likely."""

from collections.abc import Iterable, Mapping

from hicache_dbg.tracer.diagnose.by_class import briefly
from hicache_dbg.tracer.diagnose.evidence import Evidence, Tiles
from hicache_dbg.tracer.diagnose.hypotheses.host_sized_for_another_dtype import disagreeing
from hicache_dbg.tracer.diagnose.hypothesis import Hypothesis, Verdict
from hicache_dbg.tracer.events import FaultClass, Op
from hicache_dbg.tracer.words import every

RACES = (FaultClass.STORE_BEFORE_WRITE, FaultClass.READ_BEFORE_LOAD, FaultClass.SLOT_REUSE)

#: If at least this many tiles of a pool were compared and all differ, chance is ruled out.
OFTEN = 8


def _judge(evidence: Evidence) -> tuple[Verdict, str]:
    raced = [f for f in evidence.findings if f.cls in RACES]
    if raced:
        return Verdict.CONFIRMED, briefly(raced[0])
    loads = {pool: tiles for (pool, op), tiles in evidence.by_pool.items() if op == Op.LOAD}
    if not sum(tiles.verified + tiles.mismatched for tiles in loads.values()):
        return Verdict.UNDECIDED, "no loaded tile was compared"
    wrong = {pool: t for pool, t in loads.items() if t.mismatched}
    if not wrong:
        equal = "no loaded tile differs from what was backed up"
        if not evidence.sessions_corrupted:
            return Verdict.FALSIFIED, equal
        late = f"{equal}; whether that was written in time, digests cannot say"
        return Verdict.UNDECIDED, late
    return _of_wrong(evidence, loads, wrong)


def _of_wrong(
    evidence: Evidence, loads: Mapping[str, Tiles], wrong: Mapping[str, Tiles]
) -> tuple[Verdict, str]:
    """Judge the pools with mismatches among all that were loaded."""
    told = {f.pool for f in evidence.findings if f.cls is FaultClass.ROW_WIDTH}
    narrow = told & {mirror.pool for mirror in evidence.mirrors if disagreeing(mirror)}
    if set(wrong) <= narrow:
        return Verdict.FALSIFIED, (
            f"every mismatch is in {', '.join(sorted(wrong))}, whose two ends differ in size: that was so "
            f"before the first byte moved{_beside(loads, wrong)}"
        )
    always = {pool: t for pool, t in wrong.items() if not t.verified}
    if always and max(t.mismatched for t in always.values()) >= OFTEN:
        return Verdict.FALSIFIED, (
            "a race hits now and then; here "
            + ", ".join(
                f"{every(t.mismatched, 'compared tile')} of {pool} differ{'s' * (t.mismatched == 1)}"
                for pool, t in always.items()
            )
            + _beside(loads, wrong)
        )
    return Verdict.UNDECIDED, (
        ("too few tiles were compared: " if always else "some tiles differ and some do not: ")
        + ", ".join(
            f"{pool} {t.mismatched} of {t.mismatched + t.verified}" for pool, t in wrong.items()
        )
    )


def _beside(loads: Iterable[str], wrong: Iterable[str]) -> str:
    clean = sorted(set(loads) - set(wrong))
    return f", and none of {', '.join(clean)}, which moves in the same operations" if clean else ""


HYPOTHESIS = Hypothesis(
    name="race_of_wide_rows",
    question="Is it a race that wider rows make likelier?",
    falsified_by="no compared tile differs, or all of one pool do and none of its companions",
    confirmed_by="a finding of the ordering or ownership checks",
    words="it is a race",
    judge=_judge,
    decide_by="HICACHE_DBG_CHECKSUM=three: says whether the source changed under the copy",
)
