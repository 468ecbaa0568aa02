"""Something was freed twice, or never."""

from hicache_dbg.tracer.diagnose.by_class import by_class
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.events import FaultClass


def _alibi(evidence: Evidence) -> str | None:
    """Rule it out if the ledger saw every allocation; it reports what it did not see."""
    unwitnessed = evidence.skipped["unwitnessed"]
    if not evidence.paths or not evidence.starts or unwitnessed or evidence.unseen:
        return None
    if any(word.errors.get("attach/indices_skipped") for word in evidence.last_words):
        return None
    if not all(word.closing for word in evidence.last_words) or not evidence.last_words:
        return None  # leaks are reported only when a run closes
    return "no page moved that was not seen to be allocated, and the states added up at the end"


HYPOTHESIS = by_class(
    "bookkeeping_is_broken",
    FaultClass.DOUBLE_FREE,
    question="Are pages freed twice, or leaked?",
    words="the page states no longer add up",
    alibi=_alibi,
    falsified_by="the ownership ledger saw every allocation and free, and they add up",
    advice="the finding names both frees: keep the one that owns the page",
    decide_by="HICACHE_DBG=1 from the start of the process, so that every allocation is seen",
)
