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
from hicache_dbg.tracer.events import Event, FaultClass, Finding, Health, MirrorInfo, Stated


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
    assert finding.message == (
        "ranks found different prefixes for 1 request, the first a (rank 0: 4, rank 1: 3 pages): 3 may be used"
    )


def test_ranks_of_different_capacity_are_told_from_which_page_on() -> None:
    """The least capacity is what all ranks have."""
    (finding,) = join([[started(mirror(pages=100 - rank), rank=rank)] for rank in range(2)])
    assert (finding.cls, finding.pool) == (FaultClass.RANK_DIVERGENCE, "kv")
    assert finding.message == (
        "kv: ranks have different numbers of device pages (rank 0: 100, rank 1: 99): every rank has 99, "
        "page 99 is out of range on rank 1"
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


@pytest.mark.parametrize("ahead_s", [-3600, -2, 0, 2, 3600])
def test_the_clocks_of_two_hosts_accuse_nobody_and_excuse_nobody(ahead_s: int) -> None:
    """Requests that both ends state tell how far decode's clock is ahead of prefill's."""

    def at(said: Stated, second: float, ahead: int = 0) -> Stated:
        when = 10**13 + int(second * 1e9) + ahead * 10**9
        return replace(said, time_ns=when, began_ns=when - 10**7)

    ours = [at(sent(name, 2), second) for name, second in (("a", 1), ("b", 2), ("c", 3.5))]
    theirs = [
        at(received(name, 2), second, ahead_s) for name, second in (("a", 1), ("b", 2), ("d", 3.6))
    ]
    ours.insert(0, at(contract("prefill", "v", 1), 0))
    theirs.insert(0, at(contract("decode", "v", 1), 0, ahead_s))
    assert join([ours, theirs]) == []  # killed at 3.5: it may have sent d
    theirs[-1] = at(received("d", 2), 2.2, ahead_s)
    (finding,) = join([ours, theirs])
    assert "request d: prefill sent 0 pages (never sent)" in finding.message


def test_a_prefill_process_that_began_to_record_within_a_request_is_not_accused() -> None:
    """It was switched on after decode had asked for the request, and follows only later ones."""
    before, first, taken = word(), contract("prefill", "v", 1), received("r", 2)
    for began_ns, accused in ((before.time_ns, False), (first.time_ns + 1, True), (0, True)):
        said = replace(taken, began_ns=began_ns)
        assert bool(join([[first, ended()], [said]])) is accused


def test_a_request_that_decode_gave_up_as_its_last_bytes_arrived_is_not_a_finding() -> None:
    """Prefill sent it to the end and nobody reads it; another count is told all the same."""
    given_up = "not taken over"
    assert join(pair([sent("r", 2)], [received("r", 2, given_up)])) == []
    for ours, theirs in (
        (sent("r", 1), received("r", 2, given_up)),
        (sent("r", 2, given_up), received("r", 2)),
    ):
        assert len(join(pair([ours], [theirs]))) == 1


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_counts_are_compared_only_where_both_ends_lost_nothing(role: str) -> None:
    """The statement that would make the counts agree may be among the lost events."""
    lost, alive = Health(time_ns=10**6, dropped={"bus/queue_full": 1}), word()
    ours: list[Event] = [sent("r", 2), alive]
    theirs: list[Event] = [received("r", 1), alive]
    assert len(join(pair(ours, theirs))) == 1
    (ours if role == "prefill" else theirs)[-1] = lost
    assert join(pair(ours, theirs)) == []


def test_more_pages_than_were_taken_are_a_finding_however_prefill_ended() -> None:
    """What a killed prefill had sent so far can grow, and never shrink to what decode took."""
    so_far = replace(sent("r", 3), values=("3",))
    taken = replace(received("r", 2), values=("2",))
    assert len(join(pair([so_far], [taken]))) == 1


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


@pytest.mark.parametrize("silent", [0, 1])
def test_an_end_without_pools_is_not_compared_whichever_it_is(silent: int) -> None:
    """A start record without pools, complete or not, is that of a process that was not traced."""
    ends: list[list[Event]] = [[started(mirror()), ended()], [started(mirror()), ended()]]
    ends[silent][0] = started()
    assert join(pair(*ends)) == []


@pytest.mark.parametrize(
    ("tp", "split", "told"), [(1, "heads", True), (2, "heads", False), (2, "replicated", True)]
)
def test_byte_counts_are_compared_unless_the_ends_hold_different_heads(
    tp: int, split: str, told: bool
) -> None:
    """Half the bytes a slot is a fault, except where twice the ranks share the heads."""
    ends: list[list[Event]] = [
        [contract(role, "tp", ranks), contract(role, "split.kv", split), started(kv), ended()]
        for role, ranks, kv in (
            ("prefill", 1, mirror()),
            ("decode", tp, mirror(slot_bytes=128, page_bytes=8192)),
        )
    ]
    assert bool(join(ends)) is told


def test_a_pool_that_one_end_has_not_is_told() -> None:
    """Every field of it is absent at the other end."""
    theirs: list[Event] = [started(mirror()), ended()]
    (finding,) = join(pair([started(mirror(), mirror("index_k"))], theirs))
    assert (finding.pool, "absent" in finding.got) == ("index_k", True)


def ended() -> Health:
    """Return the closing event of a recording."""
    return replace(word(), closing=True)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_what_a_recording_that_ends_in_the_handshake_does_not_say_is_unknown(role: str) -> None:
    """Killed there, an end has stated some fields and announced some pools; what it has said counts."""
    other = "decode" if role == "prefill" else "prefill"
    said: list[Event] = [contract(role, "a", 1), started(mirror())]
    theirs: list[Event] = [
        *(contract(other, key, 1) for key in "ab"),
        started(mirror(), mirror("index_k")),
        ended(),
    ]
    alive, closed = word(), ended()
    later = replace(alive, time_ns=alive.time_ns + 10**9)
    lost = replace(closed, dropped={"bus/queue_full": 1})
    for last, told in (((), 0), ((alive,), 0), ((closed,), 2), ((later,), 2), ((lost,), 0)):
        found = join([[*said, *last], theirs])
        assert [one.pool for one in found] == ["", "index_k"][:told]
    (finding,) = join([[contract(role, "a", 2)], theirs])
    assert {finding.expected, finding.got} == {"a=1", "a=2"}


def given_up(*held: Stated) -> list[Finding]:
    """Return what is found if decode gave r1 up, took r2 and r3, and ``held`` is what it has."""
    count = 12
    ours = [
        tiles(request, page, [f"{request} page {page}"], role="prefill")
        for request in ("r1", "r2", "r3")
        for page in range(count)
    ]
    shared = tiles("r2", count, ["r1 page 0"], role="prefill")
    theirs = [received("r1", count, "not taken over"), received("r2", count), received("r3", count)]
    done = [sent(request, count) for request in ("r1", "r2", "r3")]
    return join(pair([*ours, shared, *done], [*theirs, *held]))


def held(request: str, page: int, of: str) -> Stated:
    """State what decode has as a page of ``request``."""
    return tiles(request, page, [of], role="decode")


def test_bytes_of_a_request_that_was_given_up_are_found_in_anothers_pages() -> None:
    """The first request that has them is named, with its pages, and whose bytes they are."""
    tiles_of_r2 = [held("r2", page, f"r1 page {page}") for page in range(3, 12)]
    late, *others = given_up(*tiles_of_r2, held("r3", 0, "r1 page 7"))
    assert {finding.cls for finding in others} == {FaultClass.PD_CONTRACT}
    assert (late.cls, late.component, late.layer) == (FaultClass.SLOT_REUSE, "row", 0)
    assert (late.pages, late.page_count) == (tuple(range(3, 11)), 9)
    assert (late.expected, late.got) == ("the bytes of request r2", "r1 page 3")
    assert "10 tiles; first: request r2, logical pages 3..11, layer 0" in late.message
    assert "was sent for request r1, which decode did not take over" in late.message


@pytest.mark.parametrize(
    ("tile", "told"),
    [
        (held("r2", 0, "r2 page 0"), []),
        (held("r1", 0, "r1 page 0"), []),  # its own bytes, whoever gave it up
        (held("r2", 12, "r1 page 0"), []),  # prefill sent the same bytes for both: a common prefix
        (held("r2", 0, "nobody's"), [FaultClass.PD_CONTRACT]),
        (held("r1", 0, "r1 page 5"), [FaultClass.PD_CONTRACT]),
    ],
)
def test_other_bytes_than_those_of_a_given_up_request_are_no_late_write(
    tile: Stated, told: list[FaultClass]
) -> None:
    """Only a request's bytes in pages for which they were not sent are."""
    assert [finding.cls for finding in given_up(tile)] == told


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
