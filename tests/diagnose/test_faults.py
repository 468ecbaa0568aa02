"""Every injected fault confirms its own hypothesis and no other cause."""

import pytest

from hicache_dbg.pools.geometry import Layout
from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.repro.faults.registry import ALL_FAULTS
from hicache_dbg.tracer.cli import selftest_stages
from hicache_dbg.tracer.cli.selftest_stages import STAGES
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Answer, Verdict, ask_all, known_hypotheses
from hicache_dbg.tracer.events import FaultClass, Finding
from hicache_dbg.tracer.settings import Checksum, Settings

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


def asked(evidence: Evidence) -> list[Answer]:
    """Return every answer; a hypothesis that fails is undecided, and none of ours may."""
    answers = ask_all(evidence)
    assert not [one for one in answers if one.evidence.startswith("it could not be asked")]
    return answers


def confirmed(fault: Fault | None, stage: str) -> set[str]:
    """Return the hypotheses that a rehearsal with ``fault`` confirms."""
    events, seen = STAGES[stage](fault, Layout.PAGE_FIRST, 0)
    assert seen.moved, "nothing moved"
    answers = asked(Evidence.of(events))
    return {answer.name for answer in answers if answer.verdict is Verdict.CONFIRMED}


def test_every_class_has_one_hypothesis_that_stands_for_it() -> None:
    """No class that a check can find is without a hypothesis."""
    assert set(BY_CLASS) == set(FaultClass)
    assert len(set(BY_CLASS.values())) == len(FaultClass)


@pytest.mark.parametrize("fault", ALL_FAULTS.values(), ids=ALL_FAULTS)
def test_a_fault_confirms_its_own_hypothesis_and_no_wrong_one(fault: Fault) -> None:
    """The right hypothesis is confirmed, and any other confirmed one follows from the class."""
    told = confirmed(fault, fault.stage) - {"tracer_was_blind"}
    assert BY_CLASS[fault.cls] in told
    assert told <= {BY_CLASS[fault.cls], *ALSO.get(fault.cls, ())}


#: What only the order of accesses tells, which nobody may have followed, and what changes at once.
HIDDEN = (
    "backup_without_a_wait",
    "backup_waits_for_an_older_event",
    "a_getter_without_a_wait",
    "page_table_overwritten_under_its_copy",
    "page_table_waits_for_an_older_copy",
    "bit_flips_in_index_k",
    "byte_stuck_in_latent",
)


@pytest.mark.parametrize("checksum", [Checksum.LOADS, Checksum.ENDS, Checksum.THREE])
@pytest.mark.parametrize("name", HIDDEN)
def test_a_fault_that_its_check_did_not_see_is_neither_ruled_out_nor_named_otherwise(
    monkeypatch: pytest.MonkeyPatch, name: str, checksum: Checksum
) -> None:
    """Equal digests do not prove that a page was written in time, nor that its table was intact."""
    fault = ALL_FAULTS[name]
    monkeypatch.setattr(
        selftest_stages, "Settings", lambda **given: Settings(**{**given, "checksum": checksum})
    )
    events, seen = STAGES[fault.stage](fault, Layout.PAGE_FIRST, 0)
    left = [e for e in events if not (isinstance(e, Finding) and e.check == "ordering")]
    answers = asked(Evidence.of(left, sessions_corrupted=int(bool(seen.wrong))))
    verdicts = {answer.name: answer.verdict for answer in answers}
    own = {BY_CLASS[fault.cls], *ALSO.get(fault.cls, ())} if seen.wrong else {BY_CLASS[fault.cls]}
    assert Verdict.FALSIFIED not in {verdicts[one] for one in own}
    told = {one for one, verdict in verdicts.items() if verdict is Verdict.CONFIRMED}
    assert told <= {*own, *OF_SIGHT}


@pytest.mark.parametrize("stage", STAGES)
def test_a_clean_run_confirms_no_cause(stage: str) -> None:
    """It confirms at most that every copy is good, or that little was checked."""
    assert confirmed(None, stage) <= OF_SIGHT
