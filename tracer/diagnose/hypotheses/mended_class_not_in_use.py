"""The formula was fixed in a host pool class that is never built."""

from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypotheses.host_sized_for_another_dtype import disagreeing
from hicache_dbg.tracer.diagnose.hypothesis import Hypothesis, Verdict


def _judge(evidence: Evidence) -> tuple[Verdict, str]:
    if not evidence.mirrors:
        return Verdict.UNDECIDED, "no mirror was recorded"
    wrong = {m.host.cls: m.pool for m in evidence.mirrors if disagreeing(m)}
    in_use = ", ".join(f"{m.pool} by {m.host.cls}" for m in evidence.mirrors)
    if not wrong:
        return Verdict.FALSIFIED, f"every class in use has the right size ({in_use})"
    if not evidence.classes_unbuilt:
        return Verdict.FALSIFIED, f"every host pool class there is was built ({in_use})"
    return Verdict.CONFIRMED, (
        f"{', '.join(f'{pool} is mirrored by {cls}, which has the wrong size' for cls, pool in wrong.items())}; "
        f"never built: {', '.join(sorted(evidence.classes_unbuilt))}. A formula mended there mends nothing"
    )


HYPOTHESIS = Hypothesis(
    name="mended_class_not_in_use",
    question="Could a fix be in a class that this process never builds?",
    falsified_by="the classes in use have the right size, or no other class exists",
    confirmed_by="a class in use with the wrong size, beside host pool classes that were never built",
    words="a class that is in use has the wrong size, and others were never built",
    judge=_judge,
    decide_by="HICACHE_DBG=1 from the start of the process, so that registration is seen",
    advice="mend the class that is in use",
)
