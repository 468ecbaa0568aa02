"""Every fault that can be injected comes out as its own hypothesis, and no other cause beside it."""

import pytest

from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.repro.faults.registry import ALL_FAULTS
from hicache_dbg.repro.faults.rehearsal import rehearse
from hicache_dbg.tracer.attach.hicache import HiCacheAttachment
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Verdict, ask_all, known_hypotheses
from hicache_dbg.tracer.events import Copied, FaultClass
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

BY_CLASS = {
    hypothesis.cause: hypothesis.name for hypothesis in known_hypotheses() if hypothesis.cause
}
#: True as well where the cause is of this class: another word for it, or what follows from it.
ALSO = {
    FaultClass.ROW_WIDTH: {"mended_class_not_in_use", "elements_taken_for_bytes"},
    FaultClass.SIDECAR_MISSING: {"pool_not_managed"},
    FaultClass.SLOT_REUSE: {"race_of_wide_rows"},
    FaultClass.STORE_BEFORE_WRITE: {"race_of_wide_rows"},
    FaultClass.READ_BEFORE_LOAD: {"race_of_wide_rows"},
}
#: No cause: what the tracer says of its own sight.
OF_SIGHT = {"tracer_was_blind", "copies_are_innocent"}


def confirmed(fault: Fault | None) -> set[str]:
    """The hypotheses that a rehearsal with ``fault`` confirms."""
    sink = MemorySink()
    with Runtime.start(Settings(gate=Gate.ON, checksum=Checksum.LOADS), sinks=[sink]) as runtime:
        attachment = runtime.attachment
        assert isinstance(attachment, HiCacheAttachment)
        seen = rehearse(fault, attachment.lifetimes.host_access)
        runtime.flush()
    assert sink.of(Copied), "nothing moved"
    assert fault or seen.loads
    answers = ask_all(Evidence.of(sink.events))
    return {answer.name for answer in answers if answer.verdict is Verdict.CONFIRMED}


def test_every_class_has_one_hypothesis_that_stands_for_it() -> None:
    """Nothing that a check can find is left without words."""
    assert set(BY_CLASS) == set(FaultClass)
    assert len(set(BY_CLASS.values())) == len(FaultClass)


@pytest.mark.parametrize("fault", ALL_FAULTS.values(), ids=ALL_FAULTS)
def test_a_fault_confirms_its_own_hypothesis_and_no_wrong_one(fault: Fault) -> None:
    """The right name is among the confirmed, and whatever else is there follows from the class."""
    told = confirmed(fault) - {"tracer_was_blind"}
    assert BY_CLASS[fault.cls] in told
    assert told <= {BY_CLASS[fault.cls], *ALSO.get(fault.cls, ())}


def test_a_clean_run_confirms_no_cause() -> None:
    """What it confirms is that every copy is good."""
    assert confirmed(None) == {"copies_are_innocent"}
