"""What a mirror and a copy say of themselves, as read off views of both ends."""

from dataclasses import replace

import numpy as np
import pytest
from tests.tracer.rig import LAYERS, PAGE, PAGES, SLOTS, WIDTH, Rig

from hicache_dbg.tracer.events import ComponentInfo, EndInfo, MirrorInfo, Op, Tier
from hicache_dbg.tracer.settings import Checksum


@pytest.fixture
def rig() -> Rig:
    """Two tiers in real memory."""
    return Rig(Checksum.LOADS)


def test_the_start_record_has_the_geometry_of_both_ends(rig: Rig) -> None:
    """Every number is the views' own; an end without a component is described as such."""
    part = ComponentInfo(
        name="part",
        dtype="uint8",
        slot_bytes=WIDTH,
        page_bytes=PAGE,
        pages=PAGES,
        layers=LAYERS,
    )
    device = EndInfo(
        tier=Tier.DEVICE,
        cls="D",
        layout="layer_first",
        device="cpu",
        slots_per_page=SLOTS,
        components=(part,),
    )
    host = EndInfo(
        tier=Tier.HOST,
        cls="H",
        layout="layer_first",
        device="cpu",
        slots_per_page=SLOTS,
        components=(part,),
    )
    told = MirrorInfo(
        pool="pool",
        index_unit="token",
        slot_page=SLOTS,
        tokens_per_page=SLOTS,
        device=device,
        host=host,
    )
    assert rig.mirror.info() == told
    bare = replace(rig.mirror, host={}).info().host
    assert bare == EndInfo(
        tier=Tier.HOST, cls="H", layout="none", device="none", slots_per_page=0, components=()
    )


def test_a_mirror_has_the_layers_of_its_largest_component_and_the_pages_of_its_smallest(
    rig: Rig,
) -> None:
    """A component may belong to fewer layers, and only pages that all have can be copied."""
    whole = rig.mirror.device["part"]
    fewer = replace(whole, bases=whole.bases[:1], pages=PAGES - 1)
    mirror = replace(rig.mirror, device={"part": whole, "less": fewer})
    assert (mirror.layers, mirror.device_pages) == (LAYERS, PAGES - 1)
    assert mirror.item_bytes == 2 * PAGE


def test_mirrors_of_one_pool_share_the_count_of_writes(rig: Rig) -> None:
    """The array that is given is kept, so that a write through one mirror is seen through another."""
    writes = np.zeros(PAGES, np.int64)
    one, other = (replace(rig.mirror, writes=writes) for _ in range(2))
    pages, count = np.array([2]), np.array([0])
    generations = rig.generations[pages]
    assert other.still(pages, generations, count)
    one.writes[2] += 1
    assert not other.still(pages, generations, count)
    assert other.still(np.array([3]), generations, count)
    assert not other.still(np.array([3]), generations + 1, count)


@pytest.mark.parametrize(("spans", "slots"), [(None, 2 * SLOTS), ([[0, 3, 0, 3], [1, 2, 0, 1]], 4)])
def test_a_copy_moves_the_bytes_of_its_pages_or_of_its_slots(
    rig: Rig, spans: list[list[int]] | None, slots: int
) -> None:
    """In every layer that it brings."""
    copy = rig.copy(Op.BACKUP, [5, 6], [1, 2], spans=None if spans is None else np.array(spans))
    assert copy.moved_bytes == LAYERS * slots * WIDTH


@pytest.mark.parametrize(("host", "device"), [(PAGES, 1), (1, PAGES), (-1, 1), (1, -1)])
def test_a_copy_fits_if_each_page_is_one_of_its_end(rig: Rig, host: int, device: int) -> None:
    """Pages of either end that do not exist are seen before anything is read."""
    assert rig.copy(Op.LOAD, [0, PAGES - 1], [PAGES - 1, 0]).fits
    beyond = rig.copy(Op.LOAD, [0, 1], [0, device])
    beyond.host_pages = np.array([0, host])
    assert not beyond.fits


def test_a_pool_without_components_has_no_page(rig: Rig) -> None:
    """Nothing of it can be copied."""
    empty = replace(rig.mirror, device={}, host={})
    assert (empty.device_pages, empty.whole_page, empty.layout) == (0, (0, 0), "none")
