"""Which tokens of a page differ, as ranges: in the digests of slots, and in a finding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tracer.rig import PAGE, SLOTS, WIDTH, Rig, view

from hicache_dbg.tracer.checks.slot_digests import differing_slots, slot_digests, tile_digest
from hicache_dbg.tracer.digest.tiles import TileDigester
from hicache_dbg.tracer.events import FaultClass, Op
from hicache_dbg.tracer.settings import Checksum


@given(st.sets(st.integers(0, SLOTS - 1)))
def test_exactly_the_slots_that_differ_are_named(wrong: set[int]) -> None:
    """Any set of slots, none included; whole tiles differ if and only if one of them does."""
    ours = np.random.default_rng(5).integers(0, 256, (3, 8, PAGE), np.uint8)
    theirs = ours.copy()
    for slot in wrong:
        theirs[1, 4, slot * WIDTH + 3] ^= 0x10
    tiles = (view(ours, "host"), 1, 4), (view(theirs, "device"), 1, 4)
    digester = TileDigester()
    assert differing_slots(digester, *tiles) == sorted(wrong)
    assert (len({tile_digest(digester, *tile) for tile in tiles}) > 1) is bool(wrong)


def test_two_slots_that_changed_places_both_differ() -> None:
    """The page holds the same bytes, and a sum would not see it."""
    ours = np.random.default_rng(5).integers(0, 256, (3, 8, PAGE), np.uint8)
    theirs = ours.copy()
    theirs[0, 0, :WIDTH], theirs[0, 0, WIDTH : 2 * WIDTH] = (
        ours[0, 0, WIDTH : 2 * WIDTH],
        ours[0, 0, :WIDTH],
    )
    tiles = (view(ours, "host"), 0, 0), (view(theirs, "device"), 0, 0)
    assert differing_slots(TileDigester(), *tiles) == [0, 1]
    assert sorted(slot_digests(TileDigester(), *tiles[0])) == sorted(
        slot_digests(TileDigester(), *tiles[1])
    )


@pytest.mark.parametrize("level", [Checksum.LOADS, Checksum.THREE])
def test_a_load_that_left_tokens_out_names_them(level: Checksum) -> None:
    """Slots 2 and 3 of each page keep older bytes: the finding says which, not only which page."""
    rig = Rig(level)
    rig.backup([1, 2], [3, 4])

    def short() -> None:
        rig.device[:, [5, 6], : 2 * WIDTH] = rig.host[:, [1, 2], : 2 * WIDTH]

    rig.session.probe.observe(lambda: [rig.copy(Op.LOAD, [1, 2], [5, 6])], short)
    copies, (finding,) = rig.finish()
    assert copies[-1].mismatched == 6
    assert (finding.cls, finding.slots) == (FaultClass.FAILED_LOAD, "2..3")
    assert "slots 2..3 differ" in finding.message


def test_where_both_ends_hold_the_same_wrong_bytes_no_slot_is_named() -> None:
    """A page that changed at rest was loaded as it was: there is nothing to compare it with."""
    rig = Rig(Checksum.LOADS)
    rig.backup([1], [3])
    rig.host[0, 1, 0] ^= 1
    rig.load([1], [5])
    _, (finding,) = rig.finish()
    assert (finding.cls, finding.slots) == (FaultClass.BIT_FLIP, "")


def test_the_clean_twin_names_nothing() -> None:
    """A load that brings every slot is no finding, and its tiles were compared."""
    rig = Rig(Checksum.LOADS)
    rig.backup([1, 2], [3, 4])
    rig.load([1, 2], [5, 6])
    copies, found = rig.finish()
    assert (copies[-1].verified, found) == (6, [])
