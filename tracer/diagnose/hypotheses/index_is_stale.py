"""The index says that a page is there, and it is gone or older."""

from hicache_dbg.tracer.diagnose.by_class import by_class, came_back_equal
from hicache_dbg.tracer.diagnose.deciding import by_comparing
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.events import FaultClass, Op


def _alibi(evidence: Evidence) -> str | None:
    """Rule it out if what the index promised came back as it was stored."""
    return came_back_equal(evidence, Op.LOAD, Op.FETCH)


HYPOTHESIS = by_class(
    "index_is_stale",
    FaultClass.STALE_INDEX,
    question="Does the index promise pages that are gone or older?",
    words="the index promises pages that are gone or older",
    alibi=_alibi,
    falsified_by="everything that the index promised arrived as it was stored",
    advice="remove the entry before the bytes go, and check the generation at the hit",
    decide_by=by_comparing,
)
