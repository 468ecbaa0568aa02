"""Host memory is not pinned, or its size is not what was asked for."""

from hicache_dbg.tracer.diagnose.by_class import by_class
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.events import FaultClass
from hicache_dbg.tracer.words import every


def _alibi(evidence: Evidence) -> str | None:
    """Rule it out if all pools are on the CPU, or if every host pool is pinned."""
    if not evidence.mirrors:
        return None
    if all(mirror.device.device == "cpu" for mirror in evidence.mirrors):
        return "the device pools lie on the CPU, where nothing has to be pinned"
    if all(mirror.host.pinned for mirror in evidence.mirrors):
        return f"pinned: {every(len(evidence.mirrors), 'host pool')}"
    return None


HYPOTHESIS = by_class(
    "host_memory_not_pinned",
    FaultClass.PINNING,
    question="Is host memory not page-locked as asked?",
    words="host memory is not pinned as asked",
    alibi=_alibi,
    falsified_by="every host pool says that it is pinned, or lies beside a CPU pool",
    advice="raise the locked-memory limit, or ask for a smaller host pool",
    decide_by="HICACHE_DBG=1 from the start of the process, so that registration is seen",
)
