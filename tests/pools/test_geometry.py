"""Published byte counts, and what a geometry refuses."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.pools.deepseek_v4 import (
    deepseek_v4_c4,
    deepseek_v4_c4_indexer,
    deepseek_v4_c4_indexer_state,
    deepseek_v4_c4_state,
    deepseek_v4_c128,
    deepseek_v4_pools,
    deepseek_v4_swa,
    draft_of,
)
from hicache_dbg.pools.geometry import (
    Component,
    GeometryError,
    IndexUnit,
    PoolGeometry,
    RunSpec,
)
from hicache_dbg.pools.kinds import index_k, mha, mla


@pytest.mark.parametrize(
    ("geometry", "slot_bytes", "page_bytes"),
    [
        (mla(1, 64), 1152, 64 * 1152),
        (mla(1, 64, torch.uint8), 656, 64 * 656),
        (mla(1, 64, torch.float8_e4m3fn), 656, 64 * 656),
        (index_k(1, 64, "bf16"), 256, 16_384),
        (index_k(1, 64, "fp8"), 132, 8_448),
        (deepseek_v4_c4_indexer(1, dtype="bf16"), 256, 16_384),
        (deepseek_v4_c4_indexer(1, dtype="fp8"), 132, 8_448),
        (deepseek_v4_c4(1), 584, 37_440),
        (deepseek_v4_c128(1), 584, 1_728),
        (deepseek_v4_swa(1), 584, 149_760),
        (deepseek_v4_c4_state(1), 8_192, 65_536),
        (deepseek_v4_c4_indexer_state(1), 2_048, 16_384),
        (mha(1, 16, heads=8, head_dim=128), 2_048, 2 * 16 * 2_048),
    ],
    ids=lambda value: value.name if isinstance(value, PoolGeometry) else str(value),
)
def test_published_byte_counts(geometry: PoolGeometry, slot_bytes: int, page_bytes: int) -> None:
    """Every pool has the bytes per slot and page that its production counterpart publishes."""
    assert geometry.components[0].slot_bytes == slot_bytes
    assert geometry.page_bytes() == page_bytes


@pytest.mark.parametrize(
    ("geometry", "slots", "tokens_per_slot", "padding"),
    [
        (deepseek_v4_swa(1), 256, 1, 256),
        (deepseek_v4_c4(1), 64, 4, 64),
        (deepseek_v4_c128(1), 2, 128, 560),
        (deepseek_v4_c4_indexer(1), 64, 4, 0),
        (deepseek_v4_c4_state(1), 8, 32, 0),
        (deepseek_v4_c4_indexer_state(1), 8, 32, 0),
    ],
    ids=lambda value: value.name if isinstance(value, PoolGeometry) else str(value),
)
def test_a_page_of_deepseek_v4_is_256_tokens_in_every_pool(
    geometry: PoolGeometry, slots: int, tokens_per_slot: int, padding: int
) -> None:
    """Pools under one anchor count 256 indices per page, however many slots they keep."""
    assert geometry.slots_per_page == slots
    assert geometry.tokens_per_slot == tokens_per_slot
    assert geometry.tokens_per_page == geometry.indices_per_page == 256
    assert geometry.padding == padding


@given(
    slots=st.integers(1, 300),
    runs=st.lists(st.integers(1, 600), min_size=1, max_size=3),
    align=st.integers(1, 700),
)
def test_a_page_is_its_payload_rounded_up(slots: int, runs: list[int], align: int) -> None:
    """A page is its runs one after the other, rounded up to its alignment."""
    component = Component(
        "c", torch.uint8, tuple(RunSpec(str(i), size) for i, size in enumerate(runs)), 1, align
    )
    page = component.page_bytes(slots)
    assert page % align == 0
    assert 0 <= page - component.page_payload(slots) < align
    ends = [component.run_offset(i, slots) + slots * size for i, size in enumerate(runs)]
    assert ends[-1] == component.page_payload(slots)
    assert [component.run_offset(i + 1, slots) for i in range(len(runs) - 1)] == ends[:-1]


def test_index_units_count_a_page_differently() -> None:
    """A page counts as its tokens, its slots, or one, depending on the index unit."""
    counts = {
        unit: replace(deepseek_v4_c4(1), index_unit=unit).indices_per_page for unit in IndexUnit
    }
    assert counts == {IndexUnit.TOKEN: 256, IndexUnit.SLOT: 64, IndexUnit.PAGE: 1}


def test_the_composite_shares_pages_and_maps_model_layers() -> None:
    """All pools of the composite share one page size; each knows its model layers."""
    pools = deepseek_v4_pools(
        swa_layers=range(6), c4_layers=(2, 4), c128_layers=(3, 5), index_dtype="bf16"
    )
    assert [pool.name for pool in pools] == [
        "deepseek_v4_swa",
        "deepseek_v4_c4",
        "deepseek_v4_c4_indexer",
        "deepseek_v4_c4_state",
        "deepseek_v4_c128",
    ]
    assert {pool.tokens_per_page for pool in pools} == {256}
    assert [pool.layer_ids for pool in pools] == [
        (0, 1, 2, 3, 4, 5),
        (2, 4),
        (2, 4),
        (2, 4),
        (3, 5),
    ]


def test_the_indexer_has_a_ring_of_its_own_where_it_is_asked_for() -> None:
    """Its ring goes with the c4 layers; its slots belong to several tokens and never move alone."""
    make = partial(deepseek_v4_pools, swa_layers=range(3), c128_layers=(1,), indexer_state=True)
    pools = make(c4_layers=(0, 2))
    (ring,) = (pool for pool in pools if pool.name == "deepseek_v4_c4_indexer_state")
    assert ring.layer_ids == (0, 2)
    assert not ring.single_slots
    assert ring.tokens_per_page == 256
    assert [pool.name for pool in make(c4_layers=())] == ["deepseek_v4_swa", "deepseek_v4_c128"]


@pytest.mark.parametrize("ring", [8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_ring_grows_with_its_slots_and_its_dtype(ring: int, dtype: torch.dtype) -> None:
    """Both rings hold four parts of a head: 512 wide for attention, 128 for the indexer."""
    for make, head in ((deepseek_v4_c4_state, 512), (deepseek_v4_c4_indexer_state, 128)):
        assert make(1, ring=ring, dtype=dtype).page_bytes() == ring * 4 * head * dtype.itemsize


def test_a_draft_pool_shares_the_page_but_not_the_layers() -> None:
    """A draft pool is the same kind of page under layers of its own."""
    target = deepseek_v4_swa(4)
    draft = draft_of(target, (4,))
    assert draft.name == "draft_deepseek_v4_swa"
    assert draft.layer_ids == (4,)
    assert draft.layers == 1
    assert draft.page_bytes() == target.page_bytes()


@pytest.mark.parametrize(
    ("build", "values"),
    [
        (lambda: deepseek_v4_c128(1, page_size=64), ("64", "128")),
        (lambda: index_k(1, 64, head_dim=100, dtype="fp8"), ("100", "128")),
        (lambda: index_k(1, 64, dtype="fp4"), ("fp4", "bf16")),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: mla(0, 64), ("layers", "0")),
        (lambda: mla(1, 64, torch.uint8, kv_lora_rank=500), ("500", "128")),
        (lambda: draft_of(mla(2, 64), (3, 3)), ("(3, 3)", "2")),
        (lambda: Component("c", torch.float32, (RunSpec("r", 6),)), ("6", "4")),
        (lambda: Component("c", torch.uint8, ()), ("runs ()",)),
        (
            lambda: deepseek_v4_pools(swa_layers=(), c4_layers=(0,), c128_layers=()),
            ("swa_layers", "empty"),
        ),
    ],
)
def test_an_impossible_geometry_is_refused_with_its_values(
    build: Callable[[], object], values: tuple[str, ...]
) -> None:
    """A geometry that cannot exist is refused with the values that disagree."""
    with pytest.raises(GeometryError) as refusal:
        build()
    assert all(value in str(refusal.value) for value in values)
