"""Hypotheses argue from counts: what is falsified, confirmed, and left open."""

import re
from dataclasses import replace

import msgspec
import pytest
from tests.exporters import samples

from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Answer, Verdict, ask_all, known_hypotheses
from hicache_dbg.tracer.diagnose.report import build_report, verdict_of
from hicache_dbg.tracer.events import (
    ComponentInfo,
    Copied,
    EndInfo,
    Event,
    FaultClass,
    Finding,
    Health,
    MirrorInfo,
    Op,
    Started,
    Tier,
)


def mirror(pool: str, cls: str, device: int, host: int, dtype: str = "bfloat16") -> MirrorInfo:
    """Return a mirror of one component with these bytes per slot, 64 slots per page."""

    def end(tier: Tier, name: str, width: int, kind: str) -> EndInfo:
        part = ComponentInfo(
            name="part", dtype=kind, slot_bytes=width, page_bytes=64 * width, pages=8, layers=2
        )
        return EndInfo(
            tier=tier,
            cls=name,
            layout="page_first",
            device="cpu",
            slots_per_page=64,
            components=(part,),
        )

    return MirrorInfo(
        pool=pool,
        index_unit="token",
        slot_page=64,
        tokens_per_page=64,
        device=end(Tier.DEVICE, "DevicePool", device, dtype),
        host=end(Tier.HOST, cls, host, "uint8"),
    )


def started(*mirrors: MirrorInfo, unbuilt: tuple[str, ...] = ()) -> Started:
    """A start-up event."""
    return Started(
        time_ns=0,
        system="s",
        version="0",
        checksum="loads",
        mirrors=mirrors,
        classes_built=tuple(m.host.cls for m in mirrors),
        classes_unbuilt=unbuilt,
    )


def copied(pool: str, op: Op, **tiles: object) -> Copied:
    """Return a copy of one pool with these outcomes."""
    given = {"verified": 0, "witnessed": 0, "mismatched": 0, "skipped": {}, "layers": 2, **tiles}
    return samples.copied(time_ns=0, pool=pool, op=op, **given)


def answers(*events: Event) -> dict[str, Answer]:
    """Return every hypothesis's answer, by name; none of ours may fail and so count as undecided."""
    told = {answer.name: answer for answer in ask_all(Evidence.of(events))}
    failed = {
        name for name, one in told.items() if one.evidence.startswith("it could not be asked")
    }
    assert failed == set()
    return told


LATENT = mirror("mla", "LatentHostPool", 1152, 1152)
CLEAN = (
    started(LATENT, mirror("index_k", "IndexKHostPool", 132, 132, "uint8"), unbuilt=("Paged",)),
    copied("mla", Op.BACKUP, witnessed=4),
    copied("index_k", Op.BACKUP, witnessed=4),
    copied("mla", Op.LOAD, verified=4),
    copied("index_k", Op.LOAD, verified=4),
)
ROW_WIDTH = Finding(time_ns=0, cls=FaultClass.ROW_WIDTH, pool="index_k", message="132 against 256")
STORY = (
    started(LATENT, mirror("index_k", "PagedHostPool", 256, 132), unbuilt=("IndexKHostPool",)),
    ROW_WIDTH,
    *CLEAN[1:4],
    copied("index_k", Op.LOAD, verified=1, mismatched=3),
)


def test_a_clean_run_confirms_that_the_copies_are_innocent() -> None:
    """All loaded tiles are equal and none is skipped: the fault is elsewhere, and no cause is confirmed."""
    told = answers(*CLEAN)
    confirmed = {name for name, answer in told.items() if answer.verdict is Verdict.CONFIRMED}
    assert confirmed == {"copies_are_innocent"}
    assert "all 8 tiles" in told["copies_are_innocent"].evidence
    assert told["tracer_was_blind"].verdict is Verdict.FALSIFIED


@pytest.mark.parametrize("load", [{"verified": 1}, {"mismatched": 1}, {"skipped": {"reused": 1}}])
@pytest.mark.parametrize("unseen", [0, 1])
def test_one_of_anything_is_singular(load: dict[str, object], unseen: int) -> None:
    """With one mirror, tile, copy and lost operation, no evidence uses a plural."""
    events: list[Event] = [
        started(LATENT),
        copied("mla", Op.BACKUP, witnessed=1),
        copied("mla", Op.LOAD, **load),
    ]
    for only in (events, events[:1] + events[2:]):
        health = Health(time_ns=1, dropped={"bus/queue_full": unseen} if unseen else {})
        for answer in answers(*only, health).values():
            assert not re.search(r"\b1 (of 1 )?[a-z ]*s\b", answer.evidence), answer.evidence
            assert "all 1" not in answer.evidence


def test_the_story_comes_out_in_both_acts() -> None:
    """The host's size and the dead class are confirmed, the five wrong theories falsified."""
    told = answers(*STORY)
    assert told["host_sized_for_another_dtype"].verdict is Verdict.CONFIRMED
    assert "fp8 with one fp32 scale per 128" in told["host_sized_for_another_dtype"].evidence
    assert told["mended_class_not_in_use"].verdict is Verdict.CONFIRMED
    assert "never built: IndexKHostPool" in told["mended_class_not_in_use"].evidence
    for name in (
        "missing_layer_gate",
        "pool_not_managed",
        "race_of_wide_rows",
        "elements_taken_for_bytes",
        "token_granular_path",
        "copies_are_innocent",
    ):
        assert told[name].verdict is Verdict.FALSIFIED, name
    race = told["race_of_wide_rows"].evidence
    assert race.endswith(", and none of mla, which moves in the same operations")
    assert next(iter(ask_all(Evidence.of(STORY)))).name == "host_sized_for_another_dtype"


def test_one_token_granular_copy_is_enough_to_confirm_that_path() -> None:
    """The evidence counts which pool and operation took it."""
    told = answers(*CLEAN, copied("index_k", Op.BACKUP, token_granular=True, witnessed=2))
    assert told["token_granular_path"].verdict is Verdict.CONFIRMED
    assert "1 of index_k backup" in told["token_granular_path"].evidence


def test_elements_taken_for_bytes_needs_an_exact_ratio() -> None:
    """128 against 256 is a factor of one element's size; 132 against 256 is not."""
    half = started(LATENT, mirror("index_k", "PagedHostPool", 256, 128))
    assert answers(half)["elements_taken_for_bytes"].verdict is Verdict.CONFIRMED
    assert answers(*STORY)["elements_taken_for_bytes"].verdict is Verdict.FALSIFIED


def test_a_pool_that_never_moves_is_not_managed() -> None:
    """A mirror that is built and never copied is named."""
    told = answers(*[event for event in CLEAN if getattr(event, "pool", "") != "index_k"])
    assert told["pool_not_managed"].verdict is Verdict.CONFIRMED
    assert told["pool_not_managed"].evidence.endswith("index_k")


def test_a_cache_that_nobody_used_is_not_accused() -> None:
    """A second cache without any copies proves nothing; one idle pool among active ones does."""
    both = [event for event in CLEAN if getattr(event, "pool", "") != "index_k"]
    for caches, verdict in (
        ((("mla",), ("index_k",)), Verdict.UNDECIDED),
        ((("mla", "index_k"),), Verdict.CONFIRMED),
        ((("index_k",), ("mla", "index_k")), Verdict.CONFIRMED),
    ):
        begun = [
            msgspec.structs.replace(event, caches=caches) if isinstance(event, Started) else event
            for event in both
        ]
        assert answers(*begun)["pool_not_managed"].verdict is verdict, caches


def test_silence_is_not_health() -> None:
    """With nothing recorded, or most of it skipped or dropped, the tracer is reported as blind."""
    assert answers()["tracer_was_blind"].verdict is Verdict.CONFIRMED
    skipped = copied("mla", Op.LOAD, verified=1, skipped={"unwitnessed": 9})
    told = answers(*CLEAN, skipped)
    assert told["tracer_was_blind"].verdict is Verdict.CONFIRMED
    assert "unwitnessed 9" in told["tracer_was_blind"].evidence
    assert told["copies_are_innocent"].verdict is Verdict.UNDECIDED
    dropped = Health(time_ns=0, dropped={"bus/queue_full": 5})
    assert answers(*CLEAN, dropped)["tracer_was_blind"].verdict is Verdict.CONFIRMED


@pytest.mark.parametrize(
    ("verified", "verdict"), [(99, Verdict.FALSIFIED), (98, Verdict.CONFIRMED)]
)
def test_sight_is_good_if_ninety_nine_of_a_hundred_loaded_tiles_were_compared(
    verified: int, verdict: Verdict
) -> None:
    """The evidence has the share, and says so if nothing came back at all."""
    load = copied("mla", Op.LOAD, verified=verified, skipped={"reused": 100 - verified})
    sight = answers(*CLEAN[:3], load)["tracer_was_blind"]
    assert sight.verdict is verdict
    assert sight.evidence.startswith(
        f"{verified}.0% of the loaded tiles were compared, 0 operations"
    )
    assert (
        answers(*CLEAN[:3])["tracer_was_blind"].evidence == "no tile came back, 0 operations lost"
    )


def test_a_finding_of_a_read_that_came_too_early_is_a_missing_gate() -> None:
    """Though every tile that was compared is right by then."""
    early = Finding(time_ns=0, cls=FaultClass.READ_BEFORE_LOAD, pool="mla", message="early")
    told = answers(*CLEAN, early)["missing_layer_gate"]
    assert told.verdict is Verdict.CONFIRMED
    assert "early" in told.evidence


EVERY_CLASS = tuple(
    Finding(time_ns=0, cls=cls, pool="mla", message=cls.value) for cls in FaultClass
)


@pytest.mark.parametrize(
    "events",
    [(), CLEAN, CLEAN[:1], CLEAN[1:], STORY, EVERY_CLASS, CLEAN + EVERY_CLASS],
    ids=["nothing", "clean", "start", "copies", "story", "findings", "both"],
)
def test_every_hypothesis_answers_whatever_there_is(events: tuple[Event, ...]) -> None:
    """No evidence makes one fail; each answer has a reason, and an undecided one says how to decide it."""
    told = answers(*events)
    assert set(told) == {hypothesis.name for hypothesis in known_hypotheses()}
    for answer in told.values():
        assert answer.evidence
        assert bool(answer.decide_by) == (answer.verdict is Verdict.UNDECIDED)
        assert "\n" not in answer.evidence


def test_findings_of_a_kind_are_one_with_their_count() -> None:
    """Findings collapsed by the bus add to the first one's count; the first text is kept."""
    later = msgspec.structs.replace(ROW_WIDTH, message="later", count=61)
    (kind,) = Evidence.of((ROW_WIDTH, later)).kinds_of_finding()
    assert (kind.message, kind.count) == ("132 against 256", 62)


def test_a_mismatch_is_enough_to_accuse_the_copies() -> None:
    """The finding about it may be in a part of the recording that is lost."""
    told = answers(*CLEAN, copied("mla", Op.LOAD, mismatched=1))["copies_are_innocent"]
    assert told.verdict is Verdict.FALSIFIED
    assert told.evidence == "1 tile mismatched, 0 kinds of finding"


def test_copies_are_not_innocent_of_what_was_lost_on_the_way() -> None:
    """An operation that was dropped, failed to be judged or was lost by a sink is not proven good."""
    for health in (
        Health(time_ns=0, dropped={"bus/queue_full": 1}),
        Health(time_ns=0, errors={"bus": 1}),
        Health(time_ns=0, errors={"probe/before": 1}),
        Health(time_ns=0, copies=len(CLEAN)),
    ):
        told = answers(*CLEAN, health)
        assert told["copies_are_innocent"].verdict is Verdict.UNDECIDED
        assert "1 operation lost" in told["copies_are_innocent"].evidence
        assert told["tracer_was_blind"].verdict is Verdict.CONFIRMED


def test_what_another_sink_lost_is_no_blindness() -> None:
    """An absent journald takes nothing away from a complete recording."""
    health = Health(
        time_ns=0,
        copies=len(CLEAN) - 1,
        dropped={"journald/absent": 9},
        errors={"sink/journald": 3},
    )
    told = answers(*CLEAN, health)
    assert told["copies_are_innocent"].verdict is Verdict.CONFIRMED
    assert told["tracer_was_blind"].verdict is Verdict.FALSIFIED


def test_every_run_has_its_say_about_what_was_lost() -> None:
    """Within one run the last health event counts; over several runs and ranks they are added."""
    words = (
        Health(time_ns=0, events=5, dropped={"bus/queue_full": 1}),
        Health(time_ns=1, events=9, dropped={"bus/queue_full": 3}, closing=True),
        Health(time_ns=2, events=2, dropped={"bus/queue_full": 2}),
        Health(time_ns=3, events=4, rank=1, errors={"bus": 1}),
    )
    health = Evidence.of(words).health
    assert health is not None
    assert (health.dropped, health.errors) == ({"bus/queue_full": 5}, {"bus": 1})


def test_pages_that_differ_in_padding_only_are_sized_right() -> None:
    """A host page without the device page's padding is not blamed on the dtype."""
    pool = mirror("c4", "PagedHostPool", 132, 132)
    (part,) = pool.device.components
    padded = msgspec.structs.replace(part, page_bytes=part.page_bytes + 192)
    device = msgspec.structs.replace(pool.device, components=(padded,))
    told = answers(started(msgspec.structs.replace(pool, device=device), unbuilt=("Other",)))
    assert told["host_sized_for_another_dtype"].verdict is Verdict.FALSIFIED
    assert told["mended_class_not_in_use"].verdict is Verdict.FALSIFIED


def test_a_host_page_that_is_longer_by_padding_only_is_of_no_other_dtype() -> None:
    """The row width is wrong all the same, and told by its own finding."""
    pool = mirror("c4", "PagedHostPool", 132, 132)
    (part,) = pool.host.components
    padded = msgspec.structs.replace(part, page_bytes=part.page_bytes + 192)
    host = msgspec.structs.replace(pool.host, components=(padded,))
    told = answers(started(msgspec.structs.replace(pool, host=host)))
    assert told["host_sized_for_another_dtype"].verdict is Verdict.FALSIFIED


@pytest.mark.parametrize(
    ("device", "host", "formula"),
    [
        (256, 132, "fp8 with one fp32 scale per 128"),
        (256, 128, "fp8"),
        (256, 68, "fp4 with one fp32 scale per 128"),
        (128, 256, "bf16"),
        (128, 512, "fp32"),
        (512, 132, "fp8 with one fp32 scale per 128"),
        (256, 100, None),
    ],
)
def test_the_formula_that_sized_the_host_is_named(
    device: int, host: int, formula: str | None
) -> None:
    """Elements of one, two and four bytes; a size that no formula gives is told without one."""
    told = answers(started(mirror("index_k", "Paged", device, host)))[
        "host_sized_for_another_dtype"
    ]
    assert told.verdict is Verdict.CONFIRMED
    named = f", the formula of {formula}" if formula else ""
    assert told.evidence == (
        f"index_k: the device stores {device} B a slot (bfloat16), Paged was sized for {host} B{named}"
    )


def test_what_did_not_come_back_is_not_proven_good() -> None:
    """A backup whose source was digested twice is not a tile that came back, nor is a lone digest."""
    down = answers(*CLEAN[:3], copied("mla", Op.BACKUP, verified=4))
    assert down["copies_are_innocent"].evidence == "no loaded tile was compared"
    taken = answers(*CLEAN, copied("mla", Op.FETCH, witnessed=4))
    assert taken["copies_are_innocent"].verdict is Verdict.UNDECIDED
    assert taken["foreign_key"].verdict is Verdict.UNDECIDED
    assert taken["truncated_storage"].verdict is Verdict.UNDECIDED


def test_a_recording_that_ends_within_an_operation_accuses_no_pool() -> None:
    """The pools of an operation are recorded one by one: the next line would have been the missing one."""
    assert answers(*CLEAN[:2])["pool_not_managed"].verdict is Verdict.UNDECIDED
    assert answers(*CLEAN[:3])["pool_not_managed"].verdict is Verdict.FALSIFIED


def test_the_books_add_up_only_where_they_were_closed() -> None:
    """Leaks are reported at close: a live or killed process has not reported them."""
    alive = Health(time_ns=0, copies=4)
    closed = Health(time_ns=1, copies=4, events=1, closing=True)
    for words, verdict in (
        ((), Verdict.UNDECIDED),
        ((alive,), Verdict.UNDECIDED),
        ((alive, closed), Verdict.FALSIFIED),
    ):
        assert answers(*CLEAN, *words)["bookkeeping_is_broken"].verdict is verdict


def test_a_pool_whose_copies_may_be_lost_is_not_accused() -> None:
    """If operations are missing, the absence of a pool's copies proves nothing."""
    moved = [event for event in CLEAN if getattr(event, "pool", "") != "index_k"]
    told = answers(*moved, Health(time_ns=0, copies=4))["pool_not_managed"]
    assert told.verdict is Verdict.UNDECIDED
    assert told.evidence.endswith("and the events of 2 operations are missing")


def test_what_was_copied_before_the_events_begin_is_not_lost() -> None:
    """The last hour of the journal has totals of the whole run; only in a full recording do they count."""
    words = [Health(time_ns=n, events=n, copies=n) for n in (90, 94)]
    assert Evidence.of([*words[:1], *CLEAN[1:], words[1]]).unseen == 0
    assert Evidence.of([*CLEAN, *words]).unseen == 90


def test_a_finding_that_no_hypothesis_is_about_is_the_verdict() -> None:
    """A draft with another stride is reported although the ends of every mirror agree."""
    draft = msgspec.structs.replace(ROW_WIDTH, message="one index space, two strides", advice="do")
    evidence = Evidence.of([*CLEAN[:2], *CLEAN[3:4], draft])
    report = build_report(evidence)
    assert report.verdict == "row_width: one index space, two strides"
    assert verdict_of(evidence, report.hypotheses)[1] == "do"


def test_ends_of_one_size_do_not_explain_a_mismatch() -> None:
    """A finding of the class alone does not imply that the pool's ends differ in size."""
    told = answers(*CLEAN, ROW_WIDTH, copied("index_k", Op.LOAD, mismatched=3))
    assert told["race_of_wide_rows"].verdict is Verdict.UNDECIDED


def test_one_bad_tile_rules_no_race_out() -> None:
    """A race shows occasionally: a single compared tile says nothing about frequency."""
    sight = (started(LATENT), copied("mla", Op.BACKUP, witnessed=9))
    few = answers(*sight, copied("mla", Op.LOAD, mismatched=1))["race_of_wide_rows"]
    many = answers(*sight, copied("mla", Op.LOAD, mismatched=9))["race_of_wide_rows"]
    assert (few.verdict, many.verdict) == (Verdict.UNDECIDED, Verdict.FALSIFIED)
    assert many.evidence == "a race hits now and then; here all 9 compared tiles of mla differ"
    fetched = copied("mla", Op.FETCH, verified=9)  # which brings nothing to the device
    beside = answers(*sight, copied("mla", Op.LOAD, mismatched=9), fetched)["race_of_wide_rows"]
    assert beside == many


def test_a_pool_of_which_only_some_tiles_differ_may_be_raced_for() -> None:
    """However many differ, those that do not show that it is a matter of time, or of the page."""
    mixed = copied("mla", Op.LOAD, mismatched=9, verified=1)
    told = answers(started(LATENT), copied("mla", Op.BACKUP, witnessed=9), mixed)
    race = told["race_of_wide_rows"]
    assert race.verdict is Verdict.UNDECIDED
    assert race.evidence == "some tiles differ and some do not: mla 9 of 10"


def test_no_race_is_ruled_out_before_anything_was_loaded() -> None:
    """Backups alone are compared with nothing."""
    race = answers(*CLEAN[:3])["race_of_wide_rows"]
    assert (race.verdict, race.evidence) == (Verdict.UNDECIDED, "no loaded tile was compared")


def test_tiles_without_a_start_record_were_compared_all_the_same() -> None:
    """A recording with damaged first lines still counts its loads."""
    told = answers(copied("mla", Op.LOAD, mismatched=9))["race_of_wide_rows"]
    assert "no loaded tile" not in told.evidence


def test_lost_operations_settle_no_dispute_about_the_path() -> None:
    """A lost operation may be the one that took the path."""
    lost = Health(time_ns=0, dropped={"bus/queue_full": 5})
    told = answers(*CLEAN, lost)["token_granular_path"]
    assert told.verdict is Verdict.UNDECIDED
    assert "the events of 5 operations are missing" in told.evidence


def test_who_came_late_does_not_vouch_for_the_books() -> None:
    """Without the start record, earlier allocations are unknown."""
    closed = Health(time_ns=1, copies=4, closing=True)
    assert answers(*CLEAN, closed)["bookkeeping_is_broken"].verdict is Verdict.FALSIFIED
    assert answers(*CLEAN[1:], closed)["bookkeeping_is_broken"].verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("beside", "verdict", "evidence"),
    [
        (
            "GPU 0: ecc_errors corrected 0, ecc_errors uncorrected 2",
            Verdict.CONFIRMED,
            "beside the changed bytes the GPU counts ecc_errors uncorrected 2",
        ),
        (
            "GPU 0: ecc_errors uncorrected 1.5e+06; GPU 1: remapped_rows pending 1",
            Verdict.CONFIRMED,
            (
                "beside the changed bytes the GPU counts ecc_errors uncorrected 1500000, "
                "remapped_rows pending 1"
            ),
        ),
        (
            "GPU 0: ",
            Verdict.UNDECIDED,
            "bytes changed, and no counter of a GPU stands beside it",
        ),
        (
            "GPU 0: ; GPU 1: pcie_replays 0",
            Verdict.FALSIFIED,
            "the GPU's counters beside the changed bytes are all 0",
        ),
    ],
)
def test_counters_of_a_gpu_are_read_whatever_their_size(
    beside: str, verdict: Verdict, evidence: str
) -> None:
    """A large counter is written with an exponent, and a GPU without ECC memory has none to read."""
    flip = Finding(
        time_ns=0,
        cls=FaultClass.BIT_FLIP,
        pool="mla",
        message=f"host page 3 changed at rest; GPU counters: {beside}",
    )
    (hardware,) = (one for one in ask_all(Evidence.of([flip])) if one.name == "hardware")
    assert (hardware.verdict, hardware.evidence) == (verdict, evidence)


def session(checksum: str = "loads", system: str = "sglang") -> Started:
    """A start-up event of a system at a checksum level."""
    return Started(
        time_ns=0,
        system=system,
        version="0",
        checksum=checksum,
        mirrors=(mirror("mla", "L", 8, 8),),
    )


BACKUP = copied("mla", Op.BACKUP, witnessed=4)


@pytest.mark.parametrize(
    ("events", "advice"),
    [
        ((session(),), "let pages be backed up"),
        ((session("sample"), BACKUP), "set HICACHE_DBG_CHECKSUM=loads"),
        ((session(), BACKUP), "let pages come back"),
        ((session(), BACKUP, Health(time_ns=0, copies=9)), "find where operations were lost"),
        (
            (session(), copied("mla", Op.LOAD, skipped={"unwitnessed": 4})),
            "pages that were backed up before tracing began are not compared",
        ),
        ((session(), copied("mla", Op.LOAD, skipped={"graph": 4})), "docs/sglang.md says"),
    ],
)
def test_who_saw_too_little_is_told_what_would_show_more(
    events: tuple[Event, ...], advice: str
) -> None:
    """Advice that was followed already is of no use."""
    (blind,) = (one for one in ask_all(Evidence.of(events)) if one.name == "tracer_was_blind")
    assert blind.verdict is Verdict.CONFIRMED
    assert blind.advice.startswith(advice)


def test_nobody_is_told_to_do_what_was_done() -> None:
    """Not to compare loads if they are compared, and not to explore an engine that is not there."""
    told = answers(session(), BACKUP)
    undecided = [one for one in told.values() if one.verdict is Verdict.UNDECIDED]
    assert told["layout_misread"].decide_by.startswith("a longer run, in which pages come back")
    assert all(one.decide_by for one in undecided)
    assert not [one for one in undecided if "CHECKSUM=loads" in one.decide_by]
    assert not [one for one in undecided if "--explore" in one.decide_by]
    own = answers(session("three", "hicache_dbg.pools"), BACKUP)
    assert own["stored_before_written"].decide_by.startswith("hicache-dbg repro --explore")
    blank = answers(session("off"), BACKUP)
    assert blank["layout_misread"].decide_by.startswith("HICACHE_DBG_CHECKSUM=loads")
    late = answers(session(), copied("mla", Op.LOAD, verified=1, skipped={"unwitnessed": 4}))
    assert "before tracing began" in late["layout_misread"].decide_by


def test_pages_that_could_not_be_followed_rule_no_wrong_bookkeeping_out() -> None:
    """An allocator whose indices the tracer had no room for was not seen as a whole."""
    for errors, verdict in (
        ({}, Verdict.FALSIFIED),
        ({"attach/indices_skipped": 1}, Verdict.UNDECIDED),
    ):
        closed = Health(time_ns=0, copies=1, closing=True, errors=errors)
        told = answers(session(), copied("mla", Op.LOAD, verified=4), closed)
        assert told["bookkeeping_is_broken"].verdict is verdict


def test_a_hypothesis_whose_advice_fails_is_undecided() -> None:
    """A user's function may fail, whatever it is for."""

    def fail(_: Evidence) -> str:
        raise ValueError("no")

    asked = replace(
        known_hypotheses()[0], judge=lambda _: (Verdict.CONFIRMED, "it is"), advice=fail
    )
    (answer,) = ask_all(Evidence(), [asked])
    assert answer.verdict is Verdict.UNDECIDED
    assert answer.evidence == "it could not be asked: ValueError: no"
