"""Joined recordings: ranks that disagree, prefill and decode that do not mean the same bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.tracer.checks.statements import (
    collective,
    contract,
    hits,
    mirror,
    received,
    sent,
    started,
    tiles,
    word,
)

from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.events import Event, FaultClass, Health, MirrorInfo


def test_ranks_that_agree_are_not_accused() -> None:
    """Equal capacities, hits, calls and tiles give no finding, in one recording or two."""
    said: list[list[Event]] = [
        [
            started(mirror(), rank=rank),
            hits("a", 3, rank),
            collective("all_reduce", rank),
            tiles("a", 0, ["1", "2"], rank=rank),
        ]
        for rank in range(2)
    ]
    assert join(said) == []
    assert join([said[0] + said[1]]) == []


def test_one_recording_of_one_rank_agrees_with_itself() -> None:
    """A single rank contradicts nobody."""
    assert join([[started(mirror()), hits("a", 3), hits("a", 4), collective("x")]]) == []


def test_the_same_request_asked_twice_is_compared_turn_by_turn() -> None:
    """Found 0 and then 4 on both ranks is agreement; 0 and 3 on the other is not."""
    both = [[hits("a", 0, rank), hits("a", 4, rank)] for rank in range(2)]
    assert join(both) == []
    (finding,) = join([both[0], [hits("a", 0, 1), hits("a", 3, 1)]])
    assert (finding.cls, finding.expected) == (
        FaultClass.RANK_DIVERGENCE,
        "3 pages on every rank",
    )


def test_tiles_of_different_shards_may_differ() -> None:
    """Heads of different ranks are different bytes; those of one shard are not."""
    assert join([[tiles("a", 0, [str(n)], rank=n, shard=f"tp{n}")] for n in range(2)]) == []
    (finding,) = join([[tiles("a", 5, ["x", str(n)], rank=n)] for n in range(2)])
    assert (finding.layer, finding.pages, finding.page_count) == (1, (5,), 1)
    assert "rank 0: 0, rank 1: 1" in finding.message


def test_a_rank_whose_recording_ended_before_is_not_accused_of_a_call() -> None:
    """It may have made the call later; one that lived on or closed has not."""
    early = [collective("x", 1)]
    ours: list[Event] = [collective("x"), collective("y")]
    assert join([ours, early]) == []
    alive = word(1)
    assert join([ours, [*early, alive]]) == []
    for later in (replace(alive, closing=True), replace(alive, time_ns=alive.time_ns + 10**9)):
        (finding,) = join([ours, [*early, later]])
        assert "rank 1 never made collective call #2 (y)" in finding.message


def test_a_recording_that_lost_events_accuses_nobody_of_silence() -> None:
    """A missing call, hit or end may be among the lost events."""
    lost = Health(time_ns=10**6, rank=1, dropped={"bus/queue_full": 1})
    ours: list[Event] = [collective("x"), collective("y"), hits("a", 0), hits("a", 3)]
    theirs: list[Event] = [collective("y", 1), hits("a", 3, 1)]
    assert len(join([ours, theirs])) == 2
    assert join([ours, [*theirs, lost]]) == []
    taken: list[Event] = [received("r", 2), replace(lost, rank=0)]
    assert join(pair([], taken)) == []


def test_a_prefill_process_that_was_killed_is_not_accused_of_silence() -> None:
    """What it said last may be missing from its recording; nor is one that began to record later."""
    first, part, taken = contract("prefill", "v", 1), sent("r", 1), received("r", 2)
    alive = word()
    late = replace(first, time_ns=taken.time_ns + 1)
    so_far, all_taken = replace(part, values=("1",)), replace(taken, values=("2",))
    for last, accused in (
        (alive, False),
        (replace(alive, closing=True), True),
        (replace(alive, time_ns=alive.time_ns + 10**9), True),
    ):
        assert bool(join([[first, last], [taken]])) is accused
        assert bool(join([[first, so_far, last], [all_taken]])) is accused
        assert join([[late, last], [taken]]) == []


def test_a_request_that_decode_gave_up_as_its_last_bytes_arrived_is_not_a_finding() -> None:
    """Prefill sent it to the end and nobody reads it; another count is told all the same."""
    given_up = "not taken over"
    assert join(pair([sent("r", 2)], [received("r", 2, given_up)])) == []
    for ours, theirs in (
        (sent("r", 1), received("r", 2, given_up)),
        (sent("r", 2, given_up), received("r", 2)),
    ):
        assert len(join(pair([ours], [theirs]))) == 1


def test_a_statement_without_a_value_says_nothing() -> None:
    """A damaged statement costs only itself."""
    empty = replace(collective("x"), values=())
    assert join([[empty], [collective("x", 1)]]) == []


def test_calls_in_another_order_are_told() -> None:
    """The first difference is named, with each rank's call."""
    ours, theirs = (
        [collective(name, rank) for name in order] for rank, order in ((0, "xyz"), (1, "xzy"))
    )
    (finding,) = join([ours, theirs])
    assert "call #2" in finding.message
    assert "rank 0: y, rank 1: z" in finding.message


def pair(ours: list[Event], theirs: list[Event]) -> list[list[Event]]:
    """Recordings of both roles."""
    return [[contract("prefill", "v", 1), *ours], [contract("decode", "v", 1), *theirs]]


def test_ends_that_agree_are_not_accused() -> None:
    """Geometry, counts and tiles are equal, on whatever pages each end uses."""
    ours: list[Event] = [
        started(mirror(pages=100)),
        sent("r", 2),
        tiles("r", 0, ["1"], role="prefill"),
    ]
    theirs: list[Event] = [
        started(mirror(pages=300)),
        received("r", 2),
        tiles("r", 0, ["1"], role="decode"),
    ]
    assert join(pair(ours, theirs)) == []


@pytest.mark.parametrize(
    ("theirs", "field"),
    [
        (mirror(slot_bytes=132, page_bytes=8448), "row.slot_bytes"),
        (mirror(dtype="float16"), "row.dtype"),
        (mirror(layers=3), "row.layers"),
        (mirror(page_bytes=16640), "row.page_bytes"),
    ],
)
def test_geometry_is_compared_by_field(theirs: MirrorInfo, field: str) -> None:
    """The finding names the field that differs, with both values."""
    (finding,) = join(pair([started(mirror())], [started(theirs)]))
    assert (finding.cls, finding.pool) == (FaultClass.PD_CONTRACT, "kv")
    assert field in finding.expected
    assert field in finding.got


def test_an_end_that_says_nothing_is_not_compared() -> None:
    """A recording without its handshake or pools is no disagreement."""
    ours: list[Event] = [contract("prefill", "v", 1), started(mirror())]
    theirs: list[Event] = [tiles("r", 0, ["1"], role="decode"), started()]
    assert join([ours, theirs]) == []


def test_a_pool_that_one_end_has_not_is_told() -> None:
    """Every field of it is absent at the other end."""
    (finding,) = join(pair([started(mirror(), mirror("index_k"))], [started(mirror())]))
    assert (finding.pool, "absent" in finding.got) == ("index_k", True)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(0, 5))
def test_any_tile_that_arrives_different_is_found(pages: list[int], at: int) -> None:
    """One digest in one layer of one page, whichever it is."""
    ours = [tiles("r", page, [f"{n}a", f"{n}b"], role="prefill") for n, page in enumerate(pages)]
    theirs = [tiles("r", page, [f"{n}a", f"{n}b"], role="decode") for n, page in enumerate(pages)]
    assert join([ours, theirs]) == []
    hit = at % len(pages)
    last = max(n for n, page in enumerate(pages) if page == pages[hit])
    theirs[last] = tiles("r", pages[hit], [f"{last}a", "other"], role="decode")
    (finding,) = join([ours, theirs])
    assert (finding.cls, finding.layer) == (FaultClass.PD_CONTRACT, 1)
    assert finding.pages == (pages[hit],)
