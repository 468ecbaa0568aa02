"""What would decide a hypothesis after this run: never what was done in it already."""

from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.events import Op

__all__ = ["OWN_ENGINE", "WAIT", "by_comparing", "by_looking_at_waits", "levels", "who_waits"]

#: How the engine that comes with this package calls itself.
OWN_ENGINE = "hicache_dbg.pools"
#: Levels of ``HICACHE_DBG_CHECKSUM`` at which every load is compared.
_COMPARING = frozenset({"loads", "ends", "three"})
WAIT = (
    "a longer run, in which pages come back: more sessions, or a smaller device pool "
    "(SGLang: --max-total-tokens)"
)
_EXPLORE = "hicache-dbg repro --explore 1000, which sees who waits for whom"
_REVIEW = "reading the code that waits: who waits for whom is recorded of our own engine only"


def levels(evidence: Evidence) -> set[str]:
    """Return the checksum levels that the run's processes started with."""
    return {checksum for _, _, checksum in evidence.starts}


def by_comparing(evidence: Evidence) -> str:
    """Return what would compare every tile that comes back."""
    known = levels(evidence)
    if not known or not known <= _COMPARING:
        return "HICACHE_DBG_CHECKSUM=loads from the start of the process"
    if not evidence.of_op(Op.LOAD, Op.FETCH, Op.RECV).moved:
        return WAIT
    if evidence.skipped["unwitnessed"]:
        return "a longer run: pages that were backed up before tracing began are not compared"
    if evidence.unseen:
        return "a run without lost operations: the tracer's line below says where they were lost"
    return "a run in which everything that comes back is compared: see what was skipped"


def who_waits(evidence: Evidence) -> str:
    """Return what would show who waits for whom."""
    own = not evidence.starts or any(system == OWN_ENGINE for system, _, _ in evidence.starts)
    return _EXPLORE if own else _REVIEW


def by_looking_at_waits(evidence: Evidence) -> str:
    """Return what would show a source that changes under a copy, and who waits for whom."""
    if levels(evidence) == {"three"}:
        return who_waits(evidence)
    return (
        "HICACHE_DBG_CHECKSUM=three, which sees a source change under the copy; "
        f"{who_waits(evidence)}"
    )
