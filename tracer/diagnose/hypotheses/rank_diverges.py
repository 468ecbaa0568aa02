"""Ranks of one group disagree."""

from hicache_dbg.tracer.diagnose.by_class import by_class
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.events import FaultClass


def _alibi(evidence: Evidence) -> str | None:
    """Rule it out if at least two ranks were compared."""
    if len(evidence.ranks) < 2 or not evidence.joined:
        return None
    return f"ranks {', '.join(map(str, sorted(evidence.ranks)))} agree"


HYPOTHESIS = by_class(
    "rank_diverges",
    FaultClass.RANK_DIVERGENCE,
    question="Does a rank diverge in capacity, hit length or number of collectives?",
    words="ranks disagree",
    alibi=_alibi,
    falsified_by="several ranks were recorded and agree",
    advice="make every rank take the smallest capacity and hit length, by one reduction",
    decide_by="if there are several ranks, record every one and name them together: "
    "hicache-dbg diagnose --together RECORDING...",
)
