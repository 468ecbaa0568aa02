"""Copies move exactly their bytes, for every pool kind, layout and io backend that exists."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pools.copying import (
    COMBINATIONS,
    WAYS,
    Combination,
    Way,
    assert_equal,
    canaries_live,
    ends_after,
    guard,
    mirror_of,
    name_of,
    pool_copy,
    run,
    snapshot,
)

from hicache_dbg.pools import copies_cpu
from hicache_dbg.pools.deepseek_v4 import deepseek_v4_c4, deepseek_v4_swa
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import IoBackend, Layout
from hicache_dbg.pools.host import Mirror, host_geometry_like, host_pool_for
from hicache_dbg.pools.kinds import index_k, mla
from hicache_dbg.pools.transfer import CopyOp, TransferEngine


@st.composite
def page_pairs(draw: st.DrawFn) -> tuple[int, int, list[int], list[int]]:
    """Return the number of pages of each end, and pairs of distinct page ids, shuffled or in runs."""
    sizes = draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    count = draw(st.integers(0, min(sizes)))
    scattered: list[list[int]] = [draw(st.permutations(range(size)))[:count] for size in sizes]
    if draw(st.booleans()):
        scattered = [sorted(ids) for ids in scattered]
    return *sizes, scattered[0], scattered[1]


@pytest.mark.parametrize("combination", COMBINATIONS, ids=name_of)
@settings(max_examples=6, deadline=None)
@given(pairs=page_pairs(), layers=st.integers(1, 2), seed=st.integers(0, 1000))
def test_whole_pages_round_trip_and_nothing_else_is_touched(
    combination: Combination,
    pairs: tuple[int, int, list[int], list[int]],
    layers: int,
    seed: int,
) -> None:
    """A backup and a load to other pages move every byte of those pages and no other byte."""
    kind, layout, backend = combination
    host_pages, device_pages, host_ids, device_ids = pairs
    mirror, memories = mirror_of(
        kind, layout, layers=layers, host_pages=host_pages, device_pages=device_pages, seed=seed
    )
    ends = ends_after(mirror, "backup", host_ids, device_ids)
    run(mirror, "backup", host_ids, device_ids, backend=backend)
    assert_equal(mirror, *ends)

    targets = device_ids[::-1]
    ends = ends_after(mirror, "load", host_ids, targets)
    done = run(mirror, "load", host_ids, targets, backend=backend)
    assert done == list(range(layers))
    assert_equal(mirror, *ends)
    assert canaries_live(memories)


@pytest.mark.parametrize(
    "combination", [item for item in COMBINATIONS if not item[0].endswith("state")], ids=name_of
)
@settings(max_examples=6, deadline=None)
@given(data=st.data(), way=st.sampled_from(WAYS), seed=st.integers(0, 1000))
def test_single_slots_move_alone(
    combination: Combination, data: st.DataObject, way: Way, seed: int
) -> None:
    """A token-granular copy moves exactly the runs of its slots and no other byte."""
    kind, layout, backend = combination
    mirror, memories = mirror_of(kind, layout, layers=2, host_pages=3, device_pages=4, seed=seed)
    geometry = mirror.device.geometry
    slots = geometry.slots_per_page
    count = data.draw(st.integers(0, 8 if slots > 3 else 3 * slots))
    host_slots, device_slots = (
        data.draw(
            st.lists(st.integers(0, pages * slots - 1), min_size=count, max_size=count, unique=True)
        )
        for pages in (3, 4)
    )
    ends = ends_after(mirror, way, host_slots, device_slots, single=True)
    run(mirror, way, host_slots, device_slots, backend=backend, single=True)
    assert_equal(mirror, *ends)
    assert canaries_live(memories)


@pytest.mark.parametrize("kind", ["index_k_fp8", "mla_bf16"])
def test_neighbouring_slots_across_a_page_border_are_no_run(kind: str) -> None:
    """Consecutive slots of two pages are copied as two runs, not past the page."""
    mirror, memories = mirror_of(
        kind, Layout.PAGE_FIRST_DIRECT, layers=2, host_pages=3, device_pages=3, seed=1
    )
    host_slots, device_slots = [1, 2, 3, 4], [4, 5, 6, 7]
    ends = ends_after(mirror, "backup", host_slots, device_slots, single=True)
    run(mirror, "backup", host_slots, device_slots, backend=IoBackend.DIRECT, single=True)
    assert_equal(mirror, *ends)
    assert canaries_live(memories)


def test_a_copy_of_many_blocks_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ids are moved when they need several blocks of the gathering kernel, including the last."""
    monkeypatch.setattr(copies_cpu, "BLOCK_BYTES", 2 * 3 * 1152)
    mirror, _ = mirror_of(
        "mla_bf16", Layout.LAYER_FIRST, layers=1, host_pages=7, device_pages=7, seed=1
    )
    host_ids, device_ids = [6, 0, 3, 2, 4], [1, 5, 2, 3, 0]
    ends = ends_after(mirror, "backup", host_ids, device_ids)
    run(mirror, "backup", host_ids, device_ids, backend=IoBackend.KERNEL)
    assert_equal(mirror, *ends)


def test_a_host_page_of_the_wrong_size_moves_its_own_width_and_no_error_is_raised() -> None:
    """8,448 B of host page over 16,384 B of device page move tokens 0..32 and leave 33..63."""
    device = DevicePool(index_k(2, 64, "bf16"), 3)
    host = host_pool_for(index_k(2, 64, "fp8"), 4, Layout.PAGE_FIRST)
    mirror = Mirror(device, host)
    guard(device, 1)
    before = snapshot(device)["index_k"]
    run(mirror, "backup", [3, 1], [0, 2], backend=IoBackend.KERNEL)
    assert torch.equal(snapshot(host)["index_k"][:, [3, 1]], before[:, [0, 2], : 33 * 256])

    guard(device, 2)
    stale = snapshot(device)["index_k"]
    run(mirror, "load", [3], [1], backend=IoBackend.KERNEL)
    after = snapshot(device)["index_k"].view(2, 3, 64, 256)
    assert torch.equal(after[:, 1, :33], before.view(2, 3, 64, 256)[:, 0, :33])
    assert torch.equal(after[:, 1, 33:], stale.view(2, 3, 64, 256)[:, 1, 33:])
    assert torch.equal(after[:, [0, 2]], stale.view(2, 3, 64, 256)[:, [0, 2]])


def test_a_host_row_of_the_wrong_width_moves_the_start_of_each_row() -> None:
    """An fp8-sized host row of 656 B over a device row of 1,152 B moves its first 656 bytes."""
    device = DevicePool(mla(1, 4), 2)
    mirror = Mirror(device, host_pool_for(mla(1, 4, torch.uint8), 2, Layout.LAYER_FIRST))
    guard(device, 1)
    run(mirror, "backup", [1], [0], backend=IoBackend.DIRECT)
    moved = snapshot(mirror.host)["latent"][0, 1]
    assert torch.equal(moved, snapshot(device)["latent"][0, 0, :, :656])


def test_a_wider_host_page_runs_into_the_next_device_page() -> None:
    """16,384 B of host page over 8,448 B of device page also read what lies after the page."""
    device = DevicePool(index_k(1, 64, "fp8"), 4)
    mirror = Mirror(device, host_pool_for(index_k(1, 64, "bf16"), 2, Layout.LAYER_FIRST))
    guard(device, 1)
    run(mirror, "backup", [0], [1], backend=IoBackend.KERNEL)
    memory = snapshot(device)["index_k"].view(-1)
    assert torch.equal(snapshot(mirror.host)["index_k"][0, 0], memory[8448 : 8448 + 16384])


def test_a_load_reports_the_model_layers_of_all_pools_once_each() -> None:
    """Pools with different model layers are loaded together, model layer by model layer."""
    mirrors = []
    for geometry in (deepseek_v4_swa(range(4), 4), deepseek_v4_c4((1, 3))):
        device = DevicePool(geometry, 2)
        guard(device, 3)
        mirrors.append(
            Mirror(device, host_pool_for(host_geometry_like(device), 2, Layout.LAYER_FIRST))
        )
    copies = tuple(pool_copy(mirror, [1], [0], IoBackend.KERNEL) for mirror in mirrors)
    seen: list[int] = []

    def on_layer_done(layer: int) -> None:
        seen.append(layer)
        for mirror in mirrors:
            for own, model_layer in enumerate(mirror.device.geometry.layer_ids):
                loaded = not snapshot(mirror.device)["kv"][own, 0].any()  # the host holds zeros
                assert loaded is (model_layer <= layer)

    TransferEngine().load(CopyOp(1, "load", copies, np.zeros(1, dtype=np.uint32)), on_layer_done)
    assert seen == [0, 1, 2, 3]
