"""A tier is written and never answers."""

from hicache_dbg.tracer.diagnose.by_class import by_class
from hicache_dbg.tracer.diagnose.deciding import WAIT
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.events import FaultClass, Op
from hicache_dbg.tracer.words import counted


def _alibi(evidence: Evidence) -> str | None:
    """Rule it out if every operation into a tier is matched by one out of it."""
    ways = ((Op.BACKUP, Op.LOAD), (Op.STORE, Op.FETCH))
    used = [(down, up) for down, up in ways if evidence.of_op(down).moved]
    if not used or not all(evidence.of_op(up).moved for _, up in used):
        return None
    return ", ".join(
        f"{counted(evidence.of_op(down).moved, 'tile')} by {down} and {evidence.of_op(up).moved} by {up}"
        for down, up in used
    )


HYPOTHESIS = by_class(
    "tier_is_dead",
    FaultClass.DEAD_TIER,
    question="Is a tier written and never read, or silently replaced by a slow path?",
    words="a tier is written and never answers",
    alibi=_alibi,
    falsified_by="what is written is read as well",
    advice="look at the status of the tier's first operations; without it, switch the tier off",
    decide_by=WAIT,
)
