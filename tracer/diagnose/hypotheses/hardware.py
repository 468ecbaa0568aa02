"""The machine changed bytes: its own counters say so, or they do not."""

import re
from collections.abc import Iterable, Mapping

from hicache_dbg.tracer.diagnose.by_class import all_loads_equal
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Hypothesis, Verdict
from hicache_dbg.tracer.events import FaultClass, Finding

#: A GPU counter in the message of a bit flip that the scrubber found: a name and a number, as
#: ``1.5e+06`` if it is large.
_COUNTER = re.compile(r"([a-z_][a-z_ ]*) ([0-9.]+(?:e[+]?[0-9]+)?)(?=,|;|$)")
_BESIDE = "; GPU counters: "
#: Counters of errors that change bytes: of this boot, or of a board that cannot mend itself any more.
#: The others count what was corrected or sent again, which is common and changes nothing, or are as
#: old as the board.
_HARMFUL = frozenset({"ecc_errors uncorrected", "remapped_rows pending", "remapped_rows failed"})


def _judge(evidence: Evidence) -> tuple[Verdict, str]:
    flips = [f for f in evidence.causes() if f.cls is FaultClass.BIT_FLIP]
    if not flips:
        reason = all_loads_equal(evidence)
        if reason is not None:
            return Verdict.FALSIFIED, reason
        return Verdict.UNDECIDED, "no tile is known to have changed at rest"
    counters = _beside(flips)
    if not counters:
        return Verdict.UNDECIDED, "bytes changed, and no counter of a GPU stands beside it"
    harmful = {name: count for name, count in counters.items() if count and name in _HARMFUL}
    if harmful:
        return Verdict.CONFIRMED, f"beside the changed bytes the GPU counts {_told(harmful)}"
    if any(counters.values()):
        return Verdict.UNDECIDED, (
            f"beside the changed bytes the GPU counts {_told(counters)}: what it corrected or sent again, "
            "or what is as old as the board, explains no changed byte"
        )
    return Verdict.FALSIFIED, "the GPU's counters beside the changed bytes are all 0"


def _beside(flips: Iterable[Finding]) -> dict[str, float]:
    """Return the largest count of each counter; none for a GPU without any (no ECC memory, say)."""
    counters: dict[str, float] = {}
    for flip in flips:
        for name, count in _COUNTER.findall(flip.message.partition(_BESIDE)[2]):
            counters[name.strip()] = max(float(count), counters.get(name.strip(), 0.0))
    return counters


def _told(counters: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {count:.0f}" for name, count in counters.items() if count)


def _decide_by(evidence: Evidence) -> str:
    if _beside(evidence.of_class(FaultClass.BIT_FLIP)):
        return "dmesg (Xid, EDAC) and nvidia-smi -q -d ECC,ROW_REMAPPER at the time of the finding"
    return "HICACHE_DBG_SCRUB=200 where NVML answers (hicache-dbg doctor)"


HYPOTHESIS = Hypothesis(
    name="hardware",
    question="Is it the hardware (ECC, PCIe replay, Xid)?",
    falsified_by="every loaded tile is equal, or the counters beside a changed page are 0",
    confirmed_by="bytes that changed at rest, with errors beside them that the GPU did not correct",
    words="the machine changed bytes",
    judge=_judge,
    advice="take the machine out of service; the Hardware dashboard and dmesg (Xid, EDAC) say which part",
    decide_by=_decide_by,
)
