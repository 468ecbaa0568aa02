"""A pool that the cache does not manage: no mirror, or never copied."""

from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Hypothesis, Verdict
from hicache_dbg.tracer.events import FaultClass, Op


def _judge(evidence: Evidence) -> tuple[Verdict, str]:
    if not evidence.mirrors:
        return Verdict.UNDECIDED, "no mirror was recorded"
    missing = [f for f in evidence.of_class(FaultClass.SIDECAR_MISSING) if not f.op]
    if missing:
        return Verdict.CONFIRMED, missing[0].message
    moved = {
        pool: (evidence.of_pool(pool, Op.BACKUP).moved, evidence.of_pool(pool, Op.LOAD).moved)
        for pool in evidence.pools
    }
    if not any(backups for backups, _ in moved.values()):
        return Verdict.UNDECIDED, "no backup was recorded"
    idle = sorted(pool for pool, (backups, _) in moved.items() if not backups)
    if idle and evidence.unseen:
        return Verdict.UNDECIDED, (
            f"no copy of {', '.join(idle)} was recorded, and {evidence.unseen} operations are not here"
        )
    if idle:
        return Verdict.CONFIRMED, f"mirrored and never copied: {', '.join(idle)}"
    table = ", ".join(
        f"{pool} {stored} backed up and {loaded} loaded" for pool, (stored, loaded) in moved.items()
    )
    return Verdict.FALSIFIED, f"every mirrored pool moves (tiles: {table})"


HYPOTHESIS = Hypothesis(
    name="pool_not_managed",
    question="Is there a pool that the cache does not carry?",
    falsified_by="every pool of the device has a mirror, and each mirror moves",
    confirmed_by="a component without a mirror, or a mirror that never moves",
    words="the cache does not carry every pool",
    judge=_judge,
    advice="give the pool a mirror in the cache",
)
