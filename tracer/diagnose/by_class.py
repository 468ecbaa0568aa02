"""Build hypotheses that a fault class settles: its checks ran and found something, or did not."""

from collections.abc import Callable

from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Hypothesis, Text, Verdict
from hicache_dbg.tracer.events import FaultClass, Finding, Op
from hicache_dbg.tracer.words import counted, every

__all__ = ["all_loads_equal", "briefly", "by_class", "came_back_equal", "no_alibi", "no_traffic"]

#: Operations that bring data back, whose tiles must be compared: a digest alone proves nothing.
BACK = (Op.LOAD, Op.FETCH, Op.RECV)

#: Returns why the cause is ruled out, or None if the evidence is not sufficient.
Alibi = Callable[[Evidence], str | None]


def by_class(
    name: str,
    *classes: FaultClass,
    question: str,
    words: str,
    alibi: Alibi,
    falsified_by: str,
    advice: Text,
    decide_by: Text = "",
    rank: int = 0,
) -> Hypothesis:
    """Return a hypothesis that findings of ``classes`` confirm and that ``alibi`` falsifies."""

    def judge(evidence: Evidence) -> tuple[Verdict, str]:
        causes = [finding for finding in evidence.causes() if finding.cls in classes]
        if causes:
            times = sum(finding.count for finding in causes)
            return Verdict.CONFIRMED, briefly(causes[0]) + (
                f" (the first of {times} findings)" if times > 1 else ""
            )
        followed = evidence.of_class(*classes)
        if followed:
            return Verdict.UNDECIDED, (
                f"{counted(sum(finding.count for finding in followed), 'finding')} of this kind, which a finding "
                "of an earlier class on the same pool can explain: mend that first"
            )
        reason = alibi(evidence)
        if reason is not None:
            return Verdict.FALSIFIED, reason
        if alibi is no_alibi:
            return (
                Verdict.UNDECIDED,
                "no such finding, and nothing that is recorded can rule it out",
            )
        return Verdict.UNDECIDED, "no such finding, and too little was checked to rule it out"

    named = " or ".join(classes)
    return Hypothesis(
        name=name,
        question=question,
        falsified_by=falsified_by,
        confirmed_by=f"a finding of class {named} that no earlier class explains",
        words=words,
        judge=judge,
        rank=rank,
        advice=advice,
        decide_by=decide_by,
        cause=classes[0],
    )


def briefly(finding: Finding) -> str:
    """Return a finding's message without the accesses that led to it."""
    return finding.message.partition("; this access: ")[0]


def no_alibi(_: Evidence) -> str | None:
    """Rule nothing out: no evidence can."""
    return None


def all_loads_equal(evidence: Evidence) -> str | None:
    """Rule the cause out if every loaded tile was compared and is equal."""
    return came_back_equal(evidence, Op.LOAD)


def came_back_equal(evidence: Evidence, *ops: Op) -> str | None:
    """Rule the cause out if every tile of ``ops`` is equal, except where another cause is proven.

    One page has one cause: a difference in a pool whose cause is known needs no second explanation.
    """
    known = {pool: finding.cls for finding in evidence.causes() for pool in finding.pool.split("+")}
    came = {pool for pool, op in evidence.by_pool if op in ops}
    # A pool that never came back is not cleared by those that did.
    explained: dict[str, str] = {
        p: known[p] for p in evidence.pools if p in known and p not in came
    }
    equal = 0
    for (pool, op), tiles in evidence.by_pool.items():
        if op not in ops:
            continue
        uncompared = tiles.skipped + (tiles.witnessed if op in BACK else 0)
        if tiles.mismatched or uncompared:
            if pool not in known:
                return None
            explained[pool] = known[pool]
        equal += tiles.verified
    if not equal or evidence.unseen:
        return None
    if not explained:
        verb = "equals" if equal == 1 else "equal"
        return f"{every(equal, 'tile')} that came back by {' and '.join(ops)} {verb} what was put there"
    why = ", ".join(f"{pool} ({cause})" for pool, cause in explained.items())
    return f"what is wrong is in {why}, whose cause is known; {counted(equal, 'other tile')} came back equal"


def no_traffic(*ops: Op, what: str) -> Alibi:
    """Return an alibi: nothing moved by ``ops``, or every tile that did is equal."""

    def alibi(evidence: Evidence) -> str | None:
        if not evidence.paths or evidence.unseen:
            return None
        return came_back_equal(evidence, *ops) if evidence.of_op(*ops).moved else what

    return alibi
