"""The machine changed bytes: its own counters say so, or they do not."""

import re

from hicache_dbg.tracer.diagnose.by_class import all_loads_equal
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Hypothesis, Verdict
from hicache_dbg.tracer.events import FaultClass

#: A GPU counter in the message of a bit flip that the scrubber found: a name and a number, as
#: ``1.5e+06`` if it is large.
_COUNTER = re.compile(r"([a-z_][a-z_ ]*) ([0-9.]+(?:e[+]?[0-9]+)?)(?=,|;|$)")
_BESIDE = "; GPU counters: "


def _judge(evidence: Evidence) -> tuple[Verdict, str]:
    flips = [f for f in evidence.causes() if f.cls is FaultClass.BIT_FLIP]
    if not flips:
        reason = all_loads_equal(evidence)
        if reason is not None:
            return Verdict.FALSIFIED, reason
        return Verdict.UNDECIDED, "no tile is known to have changed at rest"
    # Empty for a GPU that has no counters, such as one without ECC memory.
    beside = [match for f in flips for match in _COUNTER.findall(f.message.partition(_BESIDE)[2])]
    if not beside:
        return Verdict.UNDECIDED, "bytes changed, and no counter of a GPU stands beside it"
    counted = [(name.strip(), float(count)) for name, count in beside if float(count)]
    if counted:
        told = ", ".join(f"{name} {count:.0f}" for name, count in counted)
        return Verdict.CONFIRMED, f"beside the changed bytes the GPU counts {told}"
    return Verdict.FALSIFIED, "the GPU's counters beside the changed bytes are all 0"


HYPOTHESIS = Hypothesis(
    name="hardware",
    question="Is it the hardware (ECC, PCIe replay, Xid)?",
    falsified_by="every loaded tile is equal, or the counters beside a changed page are 0",
    confirmed_by="bytes that changed at rest, with a counter of the GPU above 0 beside them",
    words="the machine changed bytes",
    judge=_judge,
    advice="take the machine out of service; the Hardware dashboard and dmesg (Xid, EDAC) say which part",
    decide_by="HICACHE_DBG_SCRUB=200 where NVML answers (hicache-dbg doctor)",
)
