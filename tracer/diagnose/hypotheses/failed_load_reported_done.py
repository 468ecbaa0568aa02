"""An operation failed and was reported as done."""

from dataclasses import replace

from hicache_dbg.tracer.diagnose.by_class import all_loads_equal, by_class
from hicache_dbg.tracer.diagnose.deciding import by_comparing
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Verdict
from hicache_dbg.tracer.events import FaultClass, Finding, Op

_BY_CLASS = by_class(
    "failed_load_reported_done",
    FaultClass.FAILED_LOAD,
    question="Is a failed load reported as done?",
    words="a load that failed is reported as done",
    alibi=all_loads_equal,
    falsified_by="every loaded tile arrived",
    advice="pass the status on and recompute the pages; do not insert them into the tree",
    decide_by=by_comparing,
)


def _judge(evidence: Evidence) -> tuple[Verdict, str]:
    verdict, why = _BY_CLASS.judge(evidence)
    found = [f for f in evidence.causes() if f.cls is FaultClass.FAILED_LOAD]
    late = any(checksum == "ends" for *_, checksum in evidence.starts)
    if verdict is Verdict.CONFIRMED and late and all(map(_is_of_a_backup, found)):
        return Verdict.UNDECIDED, (
            f"{why}; under checksum=ends the host page is read a moment after the copy, in which "
            "somebody may have written over it"
        )
    return verdict, why


def _is_of_a_backup(finding: Finding) -> bool:
    return finding.op == Op.BACKUP.value and finding.check == "bytes"


HYPOTHESIS = replace(_BY_CLASS, judge=_judge)
