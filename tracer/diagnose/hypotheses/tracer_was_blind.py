"""Too little was checked to say anything."""

from hicache_dbg.tracer.diagnose.deciding import levels
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Hypothesis, Verdict
from hicache_dbg.tracer.events import Op
from hicache_dbg.tracer.words import counted

ENOUGH = 0.99


def _judge(evidence: Evidence) -> tuple[Verdict, str]:
    unseen = evidence.unseen
    share = evidence.checked_share
    if not evidence.paths:
        lost = f": {counted(unseen, 'operation')} lost on the way here" if unseen else ""
        return Verdict.CONFIRMED, f"no copy was recorded{lost}"
    came = evidence.of_op(Op.LOAD, Op.RECV).moved
    compared = f"{share:.1%} of the loaded tiles were compared" if came else "no tile came back"
    detail = f"{compared}, {counted(unseen, 'operation')} lost"
    if share >= ENOUGH and not unseen:
        return Verdict.FALSIFIED, detail
    reasons = ", ".join(f"{why} {count}" for why, count in evidence.skipped.most_common(3))
    return Verdict.CONFIRMED, detail + (f" (skipped: {reasons})" if reasons else "")


def _advice(evidence: Evidence) -> str:
    """Return what would let more be compared, the largest obstacle first."""
    if not evidence.paths and not evidence.unseen:
        return (
            "let pages be backed up, with HICACHE_DBG=1; hicache-dbg doctor says what is attached"
        )
    if levels(evidence) & {"off", "sample"}:
        return "set HICACHE_DBG_CHECKSUM=loads: digests were off, or taken of a sample"
    if evidence.unseen:
        return (
            "find where operations were lost: the tracer's line below and its health events say it; "
            "HICACHE_DBG_QUEUE holds more, HICACHE_DBG_POOLS and _OPS ask for less"
        )
    if not evidence.of_op(Op.LOAD, Op.RECV).moved:
        return (
            "let pages come back, so that there is something to compare: run longer, with more sessions "
            "or a smaller device pool (SGLang: --max-total-tokens)"
        )
    if [why for why, _ in evidence.skipped.most_common(1)] == ["unwitnessed"]:
        return (
            "pages that were backed up before tracing began are not compared: trace for longer, or "
            "start the process with HICACHE_DBG=1"
        )
    return "docs/sglang.md says what each reason for a skipped tile means, and what to do"


HYPOTHESIS = Hypothesis(
    name="tracer_was_blind",
    question="Was too little checked to say anything?",
    falsified_by="at least 99 % of the loaded tiles were compared and no operation was lost",
    confirmed_by="a smaller share, or lost operations",
    words="too little was checked to say anything",
    judge=_judge,
    rank=2,
    advice=_advice,
)
