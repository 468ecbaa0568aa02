"""A component did not move with the page it belongs to."""

from hicache_dbg.tracer.diagnose.by_class import all_loads_equal, by_class
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.events import FaultClass, Op


def _alibi(evidence: Evidence) -> str | None:
    """Rule it out if every mirrored pool moves and everything loaded is equal."""
    still = [pool for pool in evidence.pools if not evidence.of_pool(pool, Op.BACKUP).moved]
    return None if still or not evidence.pools else all_loads_equal(evidence)


HYPOTHESIS = by_class(
    "sidecar_not_carried",
    FaultClass.SIDECAR_MISSING,
    question="Is a sidecar (index-K, scales, draft, state) not carried with its pages?",
    words="a component does not move with the pages it belongs to",
    alibi=_alibi,
    falsified_by="every pool moves in the same operations, and every loaded tile is equal",
    advice="carry all components of a page in one operation, or none; disable the cache for this model until then",
    decide_by="HICACHE_DBG_POOLS=* so that every pool is seen",
)
