"""The rule of each hypothesis, from both sides: what settles it, and what is just short of that."""

from collections.abc import Sequence

import msgspec
import pytest
from tests.diagnose.test_hypotheses import CLEAN, LATENT, answers, copied, mirror, started
from tests.exporters import samples

from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Verdict, ask_all, known_hypotheses, worded
from hicache_dbg.tracer.events import (
    Event,
    FaultClass,
    Finding,
    Health,
    MirrorInfo,
    Op,
    Started,
)

CONFIRMED, FALSIFIED, UNDECIDED = Verdict.CONFIRMED, Verdict.FALSIFIED, Verdict.UNDECIDED

CLOSED = Health(time_ns=9, copies=4, closing=True)
LOST = Health(time_ns=9, copies=4, dropped={"bus/queue_full": 1})
NOT_RULED_OUT = "no such finding, and too little was checked to rule it out"
EQUAL = "all 8 tiles that came back by load equal what was put there"


def found(cls: FaultClass, pool: str = "mla", /, **given: object) -> Finding:
    """Return a finding of this class, whose message is its class and pool."""
    facts = {"op": "", "component": "", "check": "", "count": 1, **given}
    return samples.finding(time_ns=0, cls=cls, pool=pool, message=f"{cls} of {pool}", **facts)


def begun(checksum: str) -> Started:
    """Return the clean run's start at this level of digests."""
    (start,) = CLEAN[:1]
    assert isinstance(start, Started)
    return msgspec.structs.replace(start, checksum=checksum)


def told(name: str, events: Sequence[Event]) -> tuple[Verdict, str]:
    """Return one hypothesis's verdict and evidence."""
    answer = answers(*events)[name]
    return answer.verdict, answer.evidence


#: Those that only tiles which came back by a load can rule out.
BY_LOADS = (
    "bytes_changed_at_rest",
    "failed_load_reported_done",
    "hardware",
    "layout_misread",
    "stale_page_by_reuse",
    "tokens_taken_for_pages",
)
#: Those that fetches must clear as well.
BY_LOADS_AND_FETCHES = ("foreign_key", "index_is_stale")
CLEARED = (*BY_LOADS, *BY_LOADS_AND_FETCHES, "sidecar_not_carried")


@pytest.mark.parametrize("name", CLEARED)
def test_equal_tiles_rule_a_cause_out(name: str) -> None:
    """Every one that came back was compared: the evidence counts them and says by which way."""
    ways = "load and fetch" if name in BY_LOADS_AND_FETCHES else "load"
    assert told(name, CLEAN) == (FALSIFIED, EQUAL.replace("load", ways))


@pytest.mark.parametrize("name", CLEARED)
@pytest.mark.parametrize(
    "event",
    [
        copied("mla", Op.LOAD, verified=9, mismatched=1),
        copied("mla", Op.LOAD, verified=9, witnessed=1),
        copied("mla", Op.LOAD, verified=9, skipped={"reused": 1}),
        LOST,
    ],
    ids=["differs", "nothing to compare with", "skipped", "lost"],
)
def test_one_tile_that_is_not_known_to_be_equal_leaves_a_cause_open(
    name: str, event: Event
) -> None:
    """Nine of ten equal tiles clear nobody, nor do all of those that were not lost."""
    assert told(name, (*CLEAN, event))[0] is UNDECIDED


@pytest.mark.parametrize("name", CLEARED)
def test_without_a_tile_that_came_back_a_cause_stays_open(name: str) -> None:
    """Backups alone prove nothing, whichever of them were compared."""
    assert told(name, (*CLEAN[:3], copied("mla", Op.BACKUP, verified=4)))[0] is UNDECIDED
    assert told(name, (*CLEAN[:3], copied("mla", Op.LOAD)))[0] is UNDECIDED


@pytest.mark.parametrize("name", [*BY_LOADS, "sidecar_not_carried"])
def test_what_moves_by_another_way_does_not_weigh_on_a_load(name: str) -> None:
    """A backup that was skipped and a fetch that differs say nothing about what was loaded."""
    others = (
        copied("mla", Op.BACKUP, skipped={"off": 3}),
        copied("mla", Op.FETCH, mismatched=1),
        copied("mla", Op.STORE, skipped={"off": 3}),
    )
    assert told(name, (*CLEAN, *others)) == (FALSIFIED, EQUAL)


@pytest.mark.parametrize("name", BY_LOADS_AND_FETCHES)
@pytest.mark.parametrize("fetch", [{"mismatched": 1}, {"witnessed": 1}, {"skipped": {"off": 1}}])
def test_a_fetch_weighs_on_whose_key_it_is(name: str, fetch: dict[str, object]) -> None:
    """What came from storage under a key must be what was stored under it."""
    assert told(name, (*CLEAN, copied("mla", Op.FETCH, verified=2)))[0] is FALSIFIED
    assert told(name, (*CLEAN, copied("mla", Op.FETCH, verified=2, **fetch)))[0] is UNDECIDED


@pytest.mark.parametrize("name", BY_LOADS)
def test_what_has_a_cause_needs_no_second_one(name: str) -> None:
    """A pool whose cause is known is left out; the other pools alone clear the rest."""
    wide = found(FaultClass.ROW_WIDTH, "index_k")
    assert told(name, (*CLEAN, wide)) == (FALSIFIED, EQUAL)  # it came back equal all the same
    differs = copied("index_k", Op.LOAD, verified=1, mismatched=3)
    verdict, evidence = told(name, (*CLEAN, wide, differs))
    assert verdict is FALSIFIED
    assert evidence == (
        "what is wrong is in index_k (row_width), whose cause is known; 9 other tiles came back equal"
    )
    assert told(name, (*CLEAN, wide, copied("mla", Op.LOAD, mismatched=1)))[0] is UNDECIDED
    assert told(name, (*CLEAN[:4], wide)) == (
        FALSIFIED,
        "what is wrong is in index_k (row_width), whose cause is known; 4 other tiles came back equal",
    )


def test_a_cause_of_two_pools_explains_both() -> None:
    """A finding that names a pair of pools is the cause of either's differences."""
    both = found(FaultClass.INDEX_SPACE, "mla+index_k")
    wrong = [copied(pool, Op.LOAD, mismatched=1) for pool in ("mla", "index_k")]
    verdict, evidence = told("layout_misread", (*CLEAN, both, *wrong))
    assert verdict is FALSIFIED
    assert evidence.startswith("what is wrong is in mla (index_space), index_k (index_space), ")


EVERY = {hypothesis.cause: hypothesis.name for hypothesis in known_hypotheses() if hypothesis.cause}
#: Their own judges count differently; see below.
OWN_JUDGE = {"host_sized_for_another_dtype", "missing_layer_gate"}
BY_FINDINGS = {cls: name for cls, name in EVERY.items() if name not in OWN_JUDGE}


@pytest.mark.parametrize(("cls", "name"), BY_FINDINGS.items())
def test_a_finding_confirms_the_hypothesis_of_its_class(cls: FaultClass, name: str) -> None:
    """Beside a clean run too; its text is the finding's, without the accesses that led to it."""
    one = found(cls)
    assert told(name, (*CLEAN, CLOSED, one)) == (CONFIRMED, f"{cls} of mla")
    long = msgspec.structs.replace(one, message="early; this access: a; that access: b", count=3)
    assert told(name, (*CLEAN, long, one)) == (CONFIRMED, "early (the first of 4 findings)")


@pytest.mark.parametrize(("cls", "name"), BY_FINDINGS.items())
def test_an_earlier_class_on_the_same_pool_may_explain_a_finding(
    cls: FaultClass, name: str
) -> None:
    """The first class that holds names the cause: what can follow from it is left open."""
    first = found(FaultClass.ROW_WIDTH)
    verdict, evidence = told(name, (*CLEAN, first, found(cls, count=2), found(cls)))
    assert verdict is UNDECIDED
    assert evidence == (
        "3 findings of this kind, which a finding of an earlier class on the same pool can explain: "
        "mend that first"
    )
    elsewhere = found(FaultClass.ROW_WIDTH, "index_k")
    assert told(name, (*CLEAN, elsewhere, found(cls)))[0] is CONFIRMED


def test_hypotheses_are_asked_causes_first_in_the_order_of_the_classes() -> None:
    """Then what adds to a cause, and last what the tracer says of its own sight."""
    asked = known_hypotheses()
    assert [hypothesis.rank for hypothesis in asked] == sorted(one.rank for one in asked)
    causes = [one.cause for one in asked if one.cause is not None and one.rank == 0]
    assert causes == [cls for cls in FaultClass if cls in causes]
    without = [one.name for one in asked if one.cause is None and one.rank == 1]
    assert without == sorted(without)
    assert asked[-1].name == "tracer_was_blind"


def test_only_the_confirmed_advise_and_only_the_undecided_say_how_to_decide() -> None:
    """Nobody is told to mend what is ruled out."""
    by_name = {hypothesis.name: hypothesis for hypothesis in known_hypotheses()}
    evidence = Evidence.of((*CLEAN, found(FaultClass.PINNING)))
    answered = ask_all(evidence)
    assert {answer.verdict for answer in answered} == {CONFIRMED, FALSIFIED, UNDECIDED}
    for answer in answered:
        asked = by_name[answer.name]
        advice, decide_by = worded(asked.advice, evidence), worded(asked.decide_by, evidence)
        assert answer.advice == (advice if answer.verdict is CONFIRMED else "")
        assert answer.decide_by == (decide_by if answer.verdict is UNDECIDED else "")
    verdicts = [answer.verdict for answer in answered]
    assert verdicts == sorted(verdicts, key=[CONFIRMED, UNDECIDED, FALSIFIED].index)


# -- one by one -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "verdict"),
    [
        ((*CLEAN, CLOSED), FALSIFIED),
        ((*CLEAN, copied("mla", Op.LOAD, skipped={"reused": 1}), CLOSED), FALSIFIED),
        ((*CLEAN, copied("mla", Op.LOAD, skipped={"unwitnessed": 1}), CLOSED), UNDECIDED),
        ((CLEAN[0], CLOSED), UNDECIDED),
        ((*CLEAN, msgspec.structs.replace(CLOSED, errors={"bus": 1})), UNDECIDED),
        ((*CLEAN, CLOSED, Health(time_ns=9, rank=1)), UNDECIDED),
    ],
    ids=["closed", "skipped", "unwitnessed", "no copies", "lost", "one rank alive"],
)
def test_the_books_add_up_if_every_allocation_was_seen(
    events: tuple[Event, ...], verdict: Verdict
) -> None:
    """Of every rank, to its end, with nothing lost."""
    assert told("bookkeeping_is_broken", events)[0] is verdict


FLIP = found(FaultClass.BIT_FLIP)


def beside(counters: str) -> Finding:
    """Return a flipped bit with the GPU's counters in its message."""
    return msgspec.structs.replace(FLIP, message=f"changed at rest; GPU counters: {counters}")


@pytest.mark.parametrize(
    ("flips", "verdict", "evidence"),
    [
        ([FLIP], UNDECIDED, "bytes changed, and no counter of a GPU stands beside it"),
        (
            [beside("GPU 0: ecc_errors corrected 0, pcie_replays 0")],
            FALSIFIED,
            "the GPU's counters beside the changed bytes are all 0",
        ),
        (
            [beside("GPU 0: ecc_errors uncorrected 0, pcie_replays 12; GPU 1: retired_pages x 1")],
            UNDECIDED,
            (
                "beside the changed bytes the GPU counts pcie_replays 12, retired_pages x 1: what it "
                "corrected or sent again, or what is as old as the board, explains no changed byte"
            ),
        ),
        (
            [
                beside("GPU 0: ecc_errors corrected 9, ecc_errors uncorrected 1"),
                beside("GPU 0: remapped_rows uncorrected 7; GPU 1: remapped_rows pending 1"),
            ],
            CONFIRMED,
            "beside the changed bytes the GPU counts ecc_errors uncorrected 1, remapped_rows pending 1",
        ),
        (
            [FLIP, *(beside(f"GPU 0: remapped_rows failed {count}") for count in (0, 3, 2))],
            CONFIRMED,
            "beside the changed bytes the GPU counts remapped_rows failed 3",
        ),
    ],
    ids=["no counters", "all 0", "harmless", "two GPUs", "the largest, once"],
)
def test_the_machine_is_accused_by_its_own_counters_alone(
    flips: list[Finding], verdict: Verdict, evidence: str
) -> None:
    """A flipped bit may as well be a stray write, unless the GPU counts errors that change bytes."""
    assert told("hardware", (*CLEAN, *flips)) == (verdict, evidence)


def test_a_flip_that_follows_from_another_fault_is_not_the_machines() -> None:
    """A slot that was reused holds other bytes, whatever the GPU counts."""
    events = (found(FaultClass.SLOT_REUSE), beside("GPU 0: ecc_errors uncorrected 3"))
    assert told("hardware", events) == (UNDECIDED, "no tile is known to have changed at rest")


BYTES = {"op": "backup", "check": "bytes"}


@pytest.mark.parametrize(
    ("checksum", "facts", "verdict"),
    [
        ("ends", [BYTES], UNDECIDED),
        ("ends", [BYTES, BYTES], UNDECIDED),
        ("three", [BYTES], CONFIRMED),
        ("loads", [BYTES], CONFIRMED),
        ("ends", [{**BYTES, "op": "load"}], CONFIRMED),
        ("ends", [{**BYTES, "check": "completion"}], CONFIRMED),
        ("ends", [BYTES, {**BYTES, "op": "load"}], CONFIRMED),
    ],
)
def test_a_host_page_that_was_read_late_accuses_no_backup(
    checksum: str, facts: list[dict[str, object]], verdict: Verdict
) -> None:
    """Under ``ends`` somebody may have written over it in between; any other finding confirms."""
    findings = [found(FaultClass.FAILED_LOAD, **given) for given in facts]
    answer = told("failed_load_reported_done", (begun(checksum), *CLEAN[1:], *findings))
    assert answer[0] is verdict
    assert answer[1].startswith("failed_load of mla")
    assert ("under checksum=ends" in answer[1]) == (verdict is UNDECIDED)


def test_a_late_read_matters_if_any_run_was_made_so() -> None:
    """Several recordings may differ in their level."""
    clean = told("failed_load_reported_done", (begun("ends"), *CLEAN[1:]))
    assert clean == (FALSIFIED, EQUAL)  # without a finding there is nothing to doubt
    events = (begun("loads"), begun("ends"), found(FaultClass.FAILED_LOAD, **BYTES))
    assert told("failed_load_reported_done", events)[0] is UNDECIDED


def on(device: str, *, pinned: bool | None) -> MirrorInfo:
    """Return a mirror of a pool on ``device`` whose host end says whether it is pinned."""
    return msgspec.structs.replace(
        LATENT,
        pool=f"{device}{pinned}",
        device=msgspec.structs.replace(LATENT.device, device=device),
        host=msgspec.structs.replace(LATENT.host, pinned=pinned),
    )


@pytest.mark.parametrize(
    ("mirrors", "verdict", "evidence"),
    [
        ([], UNDECIDED, NOT_RULED_OUT),
        (
            [on("cpu", pinned=None)],
            FALSIFIED,
            "the device pools lie on the CPU, where nothing has to be pinned",
        ),
        ([on("cuda:0", pinned=None)], UNDECIDED, NOT_RULED_OUT),
        ([on("cuda:0", pinned=False)], UNDECIDED, NOT_RULED_OUT),
        ([on("cuda:0", pinned=True)], FALSIFIED, "pinned: the one host pool"),
        (
            [on("cuda:0", pinned=True), on("cuda:1", pinned=True)],
            FALSIFIED,
            "pinned: all 2 host pools",
        ),
        ([on("cuda:0", pinned=True), on("cuda:1", pinned=False)], UNDECIDED, NOT_RULED_OUT),
        ([on("cpu", pinned=None), on("cuda:0", pinned=None)], UNDECIDED, NOT_RULED_OUT),
    ],
)
def test_host_memory_is_pinned_if_every_pool_beside_a_gpu_says_so(
    mirrors: list[MirrorInfo], verdict: Verdict, evidence: str
) -> None:
    """One that is silent is not taken for pinned; beside a CPU pool nothing has to be."""
    assert told("host_memory_not_pinned", [started(*mirrors)]) == (verdict, evidence)


@pytest.mark.parametrize("ranks", [[0], [0, 1], [2, 0, 1]])
@pytest.mark.parametrize("joined", [False, True])
def test_ranks_agree_if_several_were_compared(ranks: list[int], joined: bool) -> None:
    """One rank alone, or several that nobody compared, are not known to agree."""
    starts = [msgspec.structs.replace(begun("loads"), rank=rank) for rank in ranks]
    evidence = Evidence.of(starts)
    evidence.joined = joined
    (answer,) = [one for one in ask_all(evidence) if one.name == "rank_diverges"]
    if joined and len(ranks) > 1:
        named = ", ".join(map(str, sorted(ranks)))
        assert (answer.verdict, answer.evidence) == (FALSIFIED, f"ranks {named} agree")
    else:
        assert (answer.verdict, answer.evidence) == (UNDECIDED, NOT_RULED_OUT)


def test_a_sidecar_is_carried_if_every_mirrored_pool_moves() -> None:
    """Equal loads of the one pool do not say that the other was carried."""
    still = (*CLEAN[:2], CLEAN[3])
    assert told("sidecar_not_carried", still)[0] is UNDECIDED
    assert told("sidecar_not_carried", CLEAN[1:])[0] is UNDECIDED


DOWN, UP = copied("mla", Op.BACKUP, witnessed=2), copied("mla", Op.LOAD, verified=3)
STORED, FETCHED = copied("mla", Op.STORE, witnessed=1), copied("mla", Op.FETCH, verified=4)


@pytest.mark.parametrize(
    ("events", "verdict", "evidence"),
    [
        ([UP], UNDECIDED, NOT_RULED_OUT),
        ([DOWN], UNDECIDED, NOT_RULED_OUT),
        ([DOWN, UP], FALSIFIED, "2 tiles by backup and 3 by load"),
        ([DOWN, UP, STORED], UNDECIDED, NOT_RULED_OUT),
        ([DOWN, STORED, FETCHED], UNDECIDED, NOT_RULED_OUT),
        ([STORED, FETCHED], FALSIFIED, "1 tile by store and 4 by fetch"),
        (
            [DOWN, UP, STORED, FETCHED],
            FALSIFIED,
            "2 tiles by backup and 3 by load, 1 tile by store and 4 by fetch",
        ),
    ],
)
def test_a_tier_answers_if_what_goes_into_it_comes_out(
    events: list[Event], verdict: Verdict, evidence: str
) -> None:
    """Each tier that was written, not one for the other."""
    assert told("tier_is_dead", events) == (verdict, evidence)


SENT, RECEIVED = copied("mla", Op.SEND, witnessed=2), copied("mla", Op.RECV, verified=2)


@pytest.mark.parametrize(
    ("events", "verdict", "evidence"),
    [
        ([], UNDECIDED, NOT_RULED_OUT),
        (CLEAN, FALSIFIED, "no page was handed from prefill to decode"),
        ((*CLEAN, LOST), UNDECIDED, NOT_RULED_OUT),
        ([SENT], UNDECIDED, NOT_RULED_OUT),
        (
            [SENT, RECEIVED],
            FALSIFIED,
            "all 2 tiles that came back by send and recv equal what was put there",
        ),
        ([SENT, copied("mla", Op.RECV, verified=1, witnessed=1)], UNDECIDED, NOT_RULED_OUT),
        ([copied("mla", Op.SEND, skipped={"off": 1}), RECEIVED], UNDECIDED, NOT_RULED_OUT),
    ],
)
def test_prefill_and_decode_agree_if_what_was_received_is_what_was_sent(
    events: Sequence[Event], verdict: Verdict, evidence: str
) -> None:
    """Where nothing was handed over there is nothing to disagree about, if nothing was lost."""
    assert told("prefill_and_decode_disagree", events) == (verdict, evidence)


@pytest.mark.parametrize(
    ("events", "verdict", "evidence"),
    [
        ([], UNDECIDED, NOT_RULED_OUT),
        (CLEAN, FALSIFIED, "no page came from storage"),
        (
            (*CLEAN, copied("mla", Op.FETCH, verified=1)),
            FALSIFIED,
            "the one tile that came back by fetch equals what was put there",
        ),
        ((*CLEAN, copied("mla", Op.FETCH, mismatched=1)), UNDECIDED, NOT_RULED_OUT),
    ],
)
def test_storage_is_sound_if_every_fetched_tile_is_equal(
    events: Sequence[Event], verdict: Verdict, evidence: str
) -> None:
    """Or if nothing came from it."""
    assert told("truncated_storage", events) == (verdict, evidence)


@pytest.mark.parametrize("name", ["stored_before_written", "table_overwritten"])
def test_no_digest_rules_out_what_only_order_tells(name: str) -> None:
    """Every tile is equal and the books are closed, and it stays open all the same."""
    reason = "no such finding, and nothing that is recorded can rule it out"
    assert told(name, (*CLEAN, CLOSED)) == (UNDECIDED, reason)


def test_a_gate_mends_no_bytes_that_are_wrong_after_the_load() -> None:
    """Such tiles rule a missing gate out, pool by pool; equal ones say nothing about it."""
    name = "missing_layer_gate"
    assert told(name, CLEAN) == (
        UNDECIDED,
        "no reader was seen to come too early; of readers that are not followed, digests cannot say",
    )
    wrong = copied("index_k", Op.LOAD, mismatched=1)
    assert told(name, (*CLEAN, wrong)) == (
        FALSIFIED,
        "the bytes are still wrong after the load is complete, which no gate can mend (index_k: 1 of 5 tiles)",
    )
    fetched = copied("index_k", Op.FETCH, mismatched=1)
    assert told(name, (*CLEAN, fetched))[0] is UNDECIDED
    early = found(FaultClass.READ_BEFORE_LOAD)
    early = msgspec.structs.replace(early, message="early; this access: x")
    assert told(name, (*CLEAN, wrong, early)) == (CONFIRMED, "early")


def test_a_pool_without_a_mirror_is_told_by_its_finding() -> None:
    """A component that missed one operation is another matter."""
    name, missing = "pool_not_managed", FaultClass.SIDECAR_MISSING
    assert told(name, (*CLEAN, found(missing))) == (CONFIRMED, "sidecar_missing of mla")
    assert told(name, (*CLEAN, found(missing, op="backup"))) == (
        FALSIFIED,
        "every mirrored pool moves (tiles: mla 4 backed up and 4 loaded, index_k 4 backed up and 4 loaded)",
    )
    assert told(name, (CLEAN[0], *CLEAN[3:])) == (UNDECIDED, "no backup was recorded")
    assert told(name, CLEAN[1:]) == (UNDECIDED, "no mirror was recorded")


@pytest.mark.parametrize(
    ("cls", "raced"),
    [
        (cls, cls in {FaultClass.STORE_BEFORE_WRITE, FaultClass.READ_BEFORE_LOAD, FaultClass.SLOT_REUSE})
        for cls in FaultClass
    ],
)  # fmt: skip
def test_a_race_is_what_the_checks_of_order_and_ownership_find(
    cls: FaultClass, raced: bool
) -> None:
    """No other class is taken for one."""
    answer = told("race_of_wide_rows", (*CLEAN, found(cls)))
    assert answer == (
        (CONFIRMED, f"{cls} of mla")
        if raced
        else (FALSIFIED, "no loaded tile differs from what was backed up")
    )


@pytest.mark.parametrize(
    ("corrupted", "verdict", "end"),
    [
        (None, FALSIFIED, "backed up"),
        (0, FALSIFIED, "backed up"),
        (1, UNDECIDED, "; whether that was written in time, digests cannot say"),
    ],
)
def test_equal_tiles_rule_no_race_out_while_sessions_are_corrupt(
    corrupted: int | None, verdict: Verdict, end: str
) -> None:
    """What was backed up may have been backed up too early."""
    asked = ask_all(Evidence.of(CLEAN, sessions_corrupted=corrupted))
    (race,) = [one for one in asked if one.name == "race_of_wide_rows"]
    assert race.verdict is verdict
    assert race.evidence.endswith(end)
    innocent = next(one for one in asked if one.name == "copies_are_innocent")
    assert innocent.verdict is CONFIRMED
    assert innocent.evidence.endswith("; sessions are corrupt all the same") == bool(corrupted)


def test_a_race_is_ruled_out_by_the_pool_that_always_differs() -> None:
    """Beside one that differs now and then; eight compared tiles are enough, seven are not."""
    sight = (started(LATENT), copied("mla", Op.BACKUP, witnessed=9))

    def race(*events: Event) -> tuple[Verdict, str]:
        return told("race_of_wide_rows", (*sight, *events))

    always, seven = copied("mla", Op.LOAD, mismatched=8), copied("mla", Op.LOAD, mismatched=7)
    sometimes = copied("index_k", Op.LOAD, mismatched=9, verified=1)
    assert race(always)[0] is FALSIFIED
    assert race(always, sometimes) == (
        FALSIFIED,
        "a race hits now and then; here all 8 compared tiles of mla differ",
    )
    assert race(seven) == (UNDECIDED, "too few tiles were compared: mla 7 of 7")
    assert race(seven, copied("clean", Op.LOAD, verified=1))[0] is UNDECIDED


def test_a_race_is_ruled_out_where_the_narrow_pool_alone_differs() -> None:
    """A finding and a geometry that disagree; another pool's mismatch is not explained by them."""
    narrow = mirror("index_k", "Paged", 256, 132)
    sight = (started(LATENT, narrow), *CLEAN[1:3], found(FaultClass.ROW_WIDTH, "index_k"))
    wrong = copied("index_k", Op.LOAD, verified=1, mismatched=1)
    assert told("race_of_wide_rows", (*sight, wrong)) == (
        FALSIFIED,
        "every mismatch is in index_k, whose two ends differ in size: that was so before the first byte moved",
    )
    other = copied("mla", Op.LOAD, verified=1, mismatched=1)
    assert told("race_of_wide_rows", (*sight, wrong, other))[0] is UNDECIDED
    assert told("race_of_wide_rows", (*sight[:-1], wrong))[0] is UNDECIDED


def test_copies_are_innocent_if_everything_was_looked_at() -> None:
    """Each lack has its own words."""
    name = "copies_are_innocent"
    assert told(name, (*CLEAN, copied("mla", Op.BACKUP, skipped={"off": 2}))) == (
        UNDECIDED,
        "8 tiles verified, but 2 of 18 were not looked at",
    )
    assert told(name, (*CLEAN, copied("mla", Op.LOAD, witnessed=2))) == (
        UNDECIDED,
        "8 tiles verified, but 2 that came back had nothing to be compared with",
    )
    assert told(name, (*CLEAN, found(FaultClass.PINNING))) == (
        FALSIFIED,
        "0 tiles mismatched, 1 kind of finding",
    )
    assert told(name, (RECEIVED,)) == (
        CONFIRMED,
        "all 2 tiles that came back equal what was backed up",
    )
    assert told(name, (FETCHED,))[0] is CONFIRMED


def test_the_three_commonest_reasons_of_blindness_are_named() -> None:
    """Most frequent first; a handover counts where nothing was loaded."""
    skipped = {"off": 1, "reused": 4, "graph": 3, "partial": 2}
    blind = told("tracer_was_blind", (copied("mla", Op.LOAD, verified=10, skipped=skipped),))
    assert blind == (
        CONFIRMED,
        "50.0% of the loaded tiles were compared, 0 operations lost (skipped: reused 4, graph 3, partial 2)",
    )
    assert told("tracer_was_blind", (SENT, RECEIVED))[0] is FALSIFIED
    wrong = copied("mla", Op.LOAD, mismatched=1)
    assert told("tracer_was_blind", (wrong,))[0] is FALSIFIED  # it was compared
    beside_a_load = (copied("mla", Op.LOAD, witnessed=1), RECEIVED)
    assert told("tracer_was_blind", beside_a_load)[0] is CONFIRMED


@pytest.mark.parametrize(
    ("device", "host", "verdict", "evidence"),
    [
        (256, 128, CONFIRMED, "exactly 2 to 1, the size of an element"),
        (128, 256, CONFIRMED, "exactly 2 to 1, the size of an element"),
        (512, 128, CONFIRMED, "exactly 4 to 1, the size of an element"),
        (384, 128, FALSIFIED, "the ends differ (mla 384:128), and not by an element's size"),
        (1024, 128, FALSIFIED, "the ends differ (mla 1024:128), and not by an element's size"),
        (128, 128, FALSIFIED, "both ends of the one mirror hold the same bytes a slot"),
    ],
)
def test_an_element_has_two_or_four_bytes(
    device: int, host: int, verdict: Verdict, evidence: str
) -> None:
    """Whichever end is the narrow one."""
    answer = told("elements_taken_for_bytes", [started(mirror("mla", "Paged", device, host))])
    assert answer[0] is verdict
    assert answer[1].endswith(evidence)


def test_a_longer_page_of_the_host_is_padding_and_no_element() -> None:
    """Slots of one size are not said to differ."""
    padded = mirror("mla", "Paged", 128, 128)
    (part,) = padded.host.components
    longer = msgspec.structs.replace(part, page_bytes=part.page_bytes + 64)
    host = msgspec.structs.replace(padded.host, components=(longer,))
    events = [started(msgspec.structs.replace(padded, host=host))]
    assert told("elements_taken_for_bytes", events) == (
        FALSIFIED,
        "both ends of the one mirror hold the same bytes a slot",
    )


def test_copies_that_were_lost_are_not_said_never_to_have_been() -> None:
    """A recording without a readable copy, of a process that counted some."""
    lost = Health(time_ns=0, copies=8, closing=True)
    assert told("tracer_was_blind", (CLEAN[0], lost)) == (
        CONFIRMED,
        "no copy was recorded: 8 operations lost on the way here",
    )
    (answer,) = (
        one for one in ask_all(Evidence.of((CLEAN[0], lost))) if one.name == "tracer_was_blind"
    )
    assert answer.advice.startswith("find where operations were lost")
    assert told("tracer_was_blind", (CLEAN[0],)) == (CONFIRMED, "no copy was recorded")


def test_a_fix_in_a_class_that_is_never_built_mends_nothing() -> None:
    """If there is such a class, and one in use has the wrong size."""
    name, narrow = "mended_class_not_in_use", mirror("index_k", "Paged", 256, 132)
    assert told(name, ()) == (UNDECIDED, "no mirror was recorded")
    assert told(name, [started(LATENT, narrow)]) == (
        FALSIFIED,
        "every host pool class there is was built (mla by LatentHostPool, index_k by Paged)",
    )
    assert told(name, [started(LATENT, unbuilt=("Other",))]) == (
        FALSIFIED,
        "every class in use has the right size (mla by LatentHostPool)",
    )
    assert told(name, [started(LATENT, narrow, unbuilt=("Other", "Another"))]) == (
        CONFIRMED,
        (
            "index_k is mirrored by Paged, which has the wrong size; never built: Another, Other. "
            "A formula mended there mends nothing"
        ),
    )


def test_a_host_of_another_dtype_is_told_with_what_it_spoilt() -> None:
    """Mismatches of that pool alone, by whatever way; without a geometry, by the finding."""
    name = "host_sized_for_another_dtype"
    assert told(name, ()) == (UNDECIDED, "no mirror's geometry was recorded")
    assert told(name, [found(FaultClass.ROW_WIDTH)]) == (CONFIRMED, "row_width of mla")
    assert told(name, CLEAN) == (
        FALSIFIED,
        "both ends of all 2 mirrors agree in bytes a slot, read off the tensors",
    )
    spoilt = [
        copied("index_k", Op.LOAD, mismatched=3),
        copied("index_k", Op.BACKUP, mismatched=1),
        copied("mla", Op.LOAD, mismatched=8),
    ]
    verdict, evidence = told(name, [started(mirror("index_k", "Paged", 256, 132)), *spoilt])
    assert verdict is CONFIRMED
    assert evidence.endswith("; 4 tiles of this pool mismatched")
