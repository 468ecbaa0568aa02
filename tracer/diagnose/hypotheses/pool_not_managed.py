"""A pool that the cache does not manage: no mirror, or never copied."""

from collections import Counter

from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Hypothesis, Verdict
from hicache_dbg.tracer.events import FaultClass, Op
from hicache_dbg.tracer.words import counted


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
    used = {pool for pool, (backups, _) in moved.items() if backups}
    idle = sorted(moved.keys() - used)
    if left := [pool for pool in idle if _left_behind(pool, used, evidence.caches)]:
        return _of_idle(evidence, ", ".join(left))
    if idle:
        unused = ", ".join(idle)
        return Verdict.UNDECIDED, f"nothing was backed up of any pool of the cache of {unused}"
    table = ", ".join(
        f"{pool} {stored} backed up and {loaded} loaded" for pool, (stored, loaded) in moved.items()
    )
    return Verdict.FALSIFIED, f"every mirrored pool moves (tiles: {table})"


def _left_behind(pool: str, used: set[str], caches: set[tuple[str, ...]]) -> bool:
    """Return whether other pools of its cache moved; if no cache is known, whether any pool did."""
    own = [cache for cache in caches if pool in cache]
    return not own or any(used & set(cache) for cache in own)


def _of_idle(evidence: Evidence, idle: str) -> tuple[Verdict, str]:
    """Judge pools without recorded copies: the copies may be missing from the recording."""
    none = f"no copy of {idle} was recorded, and "
    if evidence.unseen:
        return (
            Verdict.UNDECIDED,
            f"{none}the events of {counted(evidence.unseen, 'operation')} are missing",
        )
    if _most_copies(evidence) < 2:
        # The pools of an operation are recorded one after another: a recording may end in between.
        return Verdict.UNDECIDED, f"{none}no more than one of any other pool"
    return Verdict.CONFIRMED, f"mirrored and never copied: {idle}"


def _most_copies(evidence: Evidence) -> int:
    """Return the largest number of copies of any one pool, over all operations."""
    copies = Counter[str]()
    for (pool, *_), count in evidence.paths.items():
        copies[pool] += count
    return max(copies.values(), default=0)


HYPOTHESIS = Hypothesis(
    name="pool_not_managed",
    question="Is there a pool that the cache does not carry?",
    falsified_by="every pool of the device has a mirror, and each mirror moves",
    confirmed_by="a component without a mirror, or a mirror that never moves",
    words="the cache does not carry every pool",
    judge=_judge,
    decide_by="a longer run from the start of the process, in which every cache backs up pages",
    advice="give the pool a mirror in the cache",
)
