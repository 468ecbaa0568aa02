"""Published fault reports about ranks, prefill and decode, each with its correct diagnosis."""

import pytest
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

from hicache_dbg.tracer.checks.contract import compare_fields
from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.events import Event, FaultClass, Finding


def handed(ours: list[Event], theirs: list[Event]) -> list[Finding]:
    """Return the findings of a join of both roles."""
    return join([[contract("prefill", "v", 1), *ours], [contract("decode", "v", 1), *theirs]])


def test_a_rank_that_never_made_the_third_call() -> None:
    """Entry 85: rank 0 makes calls #1 to #3, rank 1 only #1 and #2, and lives on.

    The finding names rank 1 and call #3.
    """
    ours = [collective(name) for name in ("prefetch", "write", "load")]
    theirs: list[Event] = [collective(name, 1) for name in ("prefetch", "write")]
    alive = replace(word(1), time_ns=2 * 10**9)
    (found,) = join([ours, [*theirs, alive]])
    assert found.cls is FaultClass.RANK_DIVERGENCE
    assert "rank 1 never made collective call #3 (load)" in found.message
    assert join([ours, [collective(n, 1) for n in ("prefetch", "write", "load")]]) == []


def test_stages_that_ask_the_store_by_themselves() -> None:
    """Entry 86: stages with hits of 5 and 3 pages: 3 may be used."""
    (found,) = join([[hits("r", 5)], [hits("r", 3, 1)]])
    assert (found.cls, found.expected) == (FaultClass.RANK_DIVERGENCE, "3 pages on every rank")
    assert "rank 0: 5, rank 1: 3" in found.message


def test_stages_with_other_capacities() -> None:
    """Entry 88: ranks have 35,341 / 34,435 / 34,435 / 36,561 blocks.

    34,435 of them are usable, and id 34,435 is invalid.
    """
    sizes = (35_341, 34_435, 34_435, 36_561)
    said = [[started(mirror(pages=size), rank=rank)] for rank, size in enumerate(sizes)]
    (found,) = join(said)
    assert found.cls is FaultClass.RANK_DIVERGENCE
    assert "every rank has 34435, page 34435 is out of range on rank 1" in found.message
    assert join([[started(mirror(pages=34_435), rank=rank)] for rank in range(4)]) == []


def test_the_differing_field_is_printed() -> None:
    """Entry 89: cross_layers no and yes: the field itself is named, not a hash of all fields."""
    ours, theirs = {"cross_layers": "no", "page": "64"}, {"cross_layers": "yes", "page": "64"}
    (found,) = compare_fields("", ours, theirs, time_ns=1)
    assert found.cls is FaultClass.PD_CONTRACT
    assert found.message.startswith("cross_layers differs")
    assert (found.expected, found.got) == ("cross_layers=no", "cross_layers=yes")
    assert compare_fields("", ours, ours, time_ns=1) == []


@pytest.mark.parametrize(
    ("tp", "split", "told"), [(4, "no", True), (4, "heads", False), (1, "no", False)]
)
def test_a_pool_that_cannot_be_split(tp: int, split: str, *, told: bool) -> None:
    """Entry 90: prefill tp 1, decode tp 4, and a state pool that cannot be split.

    There is one error, at bootstrap.
    """
    said: list[list[Event]] = [
        [
            contract(role, "tp", size),
            contract(role, "split.state", split),
            started(mirror("state", slot_bytes=256 // size if split == "heads" else 256)),
        ]
        for role, size in (("prefill", 1), ("decode", tp))
    ]
    found = join(said)
    assert bool(found) is told
    if told:
        (finding,) = found
        assert (finding.pool, finding.expected, finding.got) == ("state", "tp=1", "tp=4")


def test_a_prompt_that_is_a_token_longer_at_the_other_end() -> None:
    """Entry 92: block 16, prefill 32 tokens = 2 blocks, decode 33 = 3.

    Two blocks are transferred, and one is computed.
    """
    blocks = [-(-tokens // 16) for tokens in (32, 33)]
    assert blocks == [2, 3]
    (found,) = handed([sent("r", 2)], [received("r", 3)])
    assert (found.expected, found.got) == ("2 pages (complete)", "3 pages (complete)")
    assert handed([sent("r", 2)], [received("r", min(blocks))]) == []


def test_the_first_request_that_arrived_wrong() -> None:
    """Entry 106: of requests 1..100 the first mismatch is in number 37, which is named."""
    ours = [tiles(f"r{n}", 0, ["a", "b"], role="prefill") for n in range(1, 101)]
    theirs = [
        tiles(f"r{n}", 0, ["a", "x" if n >= 37 else "b"], role="decode") for n in range(1, 101)
    ]
    (found,) = handed(list(ours), list(theirs))
    assert "64 tiles of 64 requests; first: request r37" in found.message
    assert handed(list(ours[:36]), list(theirs[:36])) == []


def test_prefill_against_decode_layer_by_layer() -> None:
    """Entry 109: the digests of a 32-token prompt at both ends, per layer: layer 2 differs."""
    ours = [tiles("r", page, ["a", "b", "c", "d"], role="prefill") for page in range(2)]
    theirs = [tiles("r", page, ["a", "b", "?", "d"], role="decode") for page in range(2)]
    (found,) = handed(list(ours), list(theirs))
    assert (found.layer, found.pages, found.expected, found.got) == (2, (0, 1), "c", "?")


def test_two_pods_that_read_one_page() -> None:
    """Entry 104: a page of the store as pod A wrote it and as pod B read it: equal, or reported."""
    wrote, read = (tiles("span 64", 0, ["a"], rank=rank) for rank in range(2))
    assert join([[wrote], [read]]) == []
    (found,) = join([[wrote], [tiles("span 64", 0, ["b"], rank=1)]])
    assert found.cls is FaultClass.RANK_DIVERGENCE
