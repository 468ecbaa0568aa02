"""Too little was checked to say anything."""

from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Hypothesis, Verdict
from hicache_dbg.tracer.events import Op
from hicache_dbg.tracer.words import counted

ENOUGH = 0.99


def _judge(evidence: Evidence) -> tuple[Verdict, str]:
    unseen = evidence.unseen
    share = evidence.checked_share
    if not evidence.paths:
        return Verdict.CONFIRMED, "no copy was recorded"
    came = evidence.of_op(Op.LOAD, Op.RECV).moved
    compared = f"{share:.1%} of the loaded tiles were compared" if came else "no tile came back"
    detail = f"{compared}, {counted(unseen, 'operation')} lost"
    if share >= ENOUGH and not unseen:
        return Verdict.FALSIFIED, detail
    reasons = ", ".join(f"{why} {count}" for why, count in evidence.skipped.most_common(3))
    return Verdict.CONFIRMED, detail + (f" (skipped: {reasons})" if reasons else "")


HYPOTHESIS = Hypothesis(
    name="tracer_was_blind",
    question="Was too little checked to say anything?",
    falsified_by="at least 99 % of the loaded tiles were compared and no operation was lost",
    confirmed_by="a smaller share, or lost operations",
    words="too little was checked to say anything",
    judge=_judge,
    rank=2,
    advice="raise HICACHE_DBG_CHECKSUM, start with the process, and look at the drop counters",
)
