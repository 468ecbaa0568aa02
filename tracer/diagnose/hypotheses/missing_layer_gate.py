"""A layer was read before its load was done."""

from hicache_dbg.tracer.diagnose.by_class import briefly
from hicache_dbg.tracer.diagnose.deciding import who_waits
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Hypothesis, Verdict
from hicache_dbg.tracer.events import FaultClass, Op
from hicache_dbg.tracer.words import counted


def _judge(evidence: Evidence) -> tuple[Verdict, str]:
    found = [f for f in evidence.findings if f.cls is FaultClass.READ_BEFORE_LOAD]
    if found:
        return Verdict.CONFIRMED, briefly(found[0])
    loads = {pool: evidence.of_pool(pool, Op.LOAD) for pool in evidence.pools}
    wrong = {pool: tiles for pool, tiles in loads.items() if tiles.mismatched}
    if wrong:
        return Verdict.FALSIFIED, (
            "the bytes are still wrong after the load is complete, which no gate can mend ("
            + ", ".join(
                f"{pool}: {t.mismatched} of {counted(t.moved, 'tile')}" for pool, t in wrong.items()
            )
            + ")"
        )
    return (
        Verdict.UNDECIDED,
        "no reader was seen to come too early; of readers that are not followed, digests cannot say",
    )


HYPOTHESIS = Hypothesis(
    name="missing_layer_gate",
    question="Is a layer read before its load is done?",
    falsified_by="bytes that are wrong after the load is complete: a gate orders, it does not repair",
    confirmed_by="a read_before_load finding",
    words="a layer is read before its load is done",
    judge=_judge,
    rank=0,
    advice="wait for the layer in every reader, not only in the gated accessor",
    decide_by=who_waits,
    cause=FaultClass.READ_BEFORE_LOAD,
)
