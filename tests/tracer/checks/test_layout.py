"""Layout tags against strides, and two readings of one memory."""

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import GeometryError, Layout
from hicache_dbg.pools.host import LatentHostPool, Mirror, host_geometry_like, host_pool_for
from hicache_dbg.pools.kinds import index_k, mha, mla
from hicache_dbg.tracer.attach.hicache_views import mirror_views
from hicache_dbg.tracer.checks.layout import (
    axis_order,
    check_layout,
    check_readings,
    readings,
)
from hicache_dbg.tracer.events import FaultClass
from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.view import Run, View


def mirror_of(kind: str, layout: Layout, layers: int = 3, pages: int = 5) -> MirrorViews:
    """A real mirror of one of the engine's kinds."""
    geometry = {
        "mla": mla(layers, 4),
        "index_k": index_k(layers, 4, "fp8"),
        "mha": mha(layers, 4, heads=2, head_dim=8),
    }[kind]
    pool = DevicePool(geometry, pages)
    return mirror_views(Mirror(pool, host_pool_for(host_geometry_like(pool), pages, layout)), None)


@given(
    kind=st.sampled_from(["mla", "index_k", "mha"]),
    layout=st.sampled_from(list(Layout)),
    layers=st.integers(1, 4),
    pages=st.integers(1, 6),
)
def test_the_engines_own_tags_are_true(kind: str, layout: Layout, layers: int, pages: int) -> None:
    """No finding for any pool, layout and size, even if an axis has a single entry."""
    try:
        mirror = mirror_of(kind, layout, layers, pages)
    except GeometryError:
        assert layout is Layout.PAGE_HEAD
        return
    assert check_layout(mirror, time_ns=0) == []
    assert check_readings(mirror, [mirror], time_ns=0) == []


@pytest.mark.parametrize("kind", ["mla", "mha"])
@pytest.mark.parametrize(("true", "told"), list(permutations([*Layout][:3], 2)))
def test_a_tag_that_was_not_forwarded_is_found(kind: str, true: Layout, told: Layout) -> None:
    """Entry 15: the memory has one order and its tag another, with equal sizes."""
    mirror = mirror_of(kind, true)
    lying = replace(
        mirror,
        host={name: replace(view, layout=told.value) for name, view in mirror.host.items()},
    )
    found = check_layout(lying, time_ns=0)
    assert {(item.cls, item.expected) for item in found} == {(FaultClass.LAYOUT_ORDER, told.value)}
    assert all(true.value in item.got.split(" or ") for item in found)
    assert len(found) == len(mirror.host)


def test_readings_that_cannot_be_told_apart_are_both_named() -> None:
    """Entry 12: with a single-entry axis several tags mean one order, and none is wrong."""
    assert readings(("page", "slot")) == tuple(layout.value for layout in Layout)
    assert readings(("page", "slot", "layer")) == ("page_first", "page_head")
    assert readings(("page", "layer", "slot")) == ("page_first_direct",)
    assert readings(("slot", "page")) == ()


def test_rows_and_tiles_over_the_same_bytes_are_two_readings() -> None:
    """Entry 17: page 64, dim 128, written row by row, read as 16 x 16 tiles: same bytes, other order."""
    rows = View(
        pool="index_k",
        component="key",
        tier="host",
        layout="page_first",
        dtype="uint8",
        itemsize=1,
        bases=(4096,),
        page_stride=8192,
        page_span=8192,
        pages=4,
        slots_per_page=64,
        runs=(Run(0, 128, 128),),
    )
    tiles = replace(rows, runs=(Run(0, 16, 16, rows=8, row_stride=1024),))
    assert rows.segments(1, 2) == [(128, 128)]
    assert tiles.segments(1, 2)[0] == (16, 16)
    written, read = (
        MirrorViews(
            pool="index_k",
            device={"key": view},
            host={"key": view},
            device_cls="D",
            host_cls="H",
            index_unit="token",
            slot_page=64,
            tokens_per_page=64,
            page_indexed=True,
            pinned=None,
        )
        for view in (rows, tiles)
    )
    (found,) = check_readings(read, [written], time_ns=0)
    assert (found.cls, found.pool) == (FaultClass.LAYOUT_ORDER, "index_k")
    assert check_readings(read, [read], time_ns=0) == []
    assert axis_order(rows, page_indexed=True) == ("page",)


def test_a_tag_that_is_not_ours_is_not_judged() -> None:
    """An engine's own name for an order that we do not know says nothing about the strides."""
    mirror = untagged(layers=3, slots=4)
    own = {name: replace(view, layout="swizzled") for name, view in mirror.host.items()}
    assert check_layout(replace(mirror, host=own), time_ns=0) == []


def untagged(layers: int, slots: int) -> MirrorViews:
    """A row-indexed mirror in page_first order whose host tensor has no tag."""
    pool = DevicePool(mla(layers, slots, kv_lora_rank=48, rope_dim=16), 6)
    views = mirror_views(
        Mirror(pool, LatentHostPool(host_geometry_like(pool), 6, Layout.PAGE_FIRST)), None
    )
    return replace(
        views, host={name: replace(view, layout="") for name, view in views.host.items()}
    )


def test_an_untagged_tensor_is_ambiguous_where_two_readings_have_its_shape() -> None:
    """Entry 12: with as many layers as slots, the shape cannot tell which axis is which."""
    (found,) = check_layout(untagged(layers=4, slots=4), time_ns=0)
    assert (found.cls, found.expected) == (FaultClass.LAYOUT_ORDER, "a layout tag")
    assert "ambiguous" in found.message
    assert set(found.got.split(" or ")) == {"page_first", "page_first_direct"}


@pytest.mark.parametrize(("layers", "slots"), [(3, 4), (4, 8), (2, 1)])
def test_an_untagged_tensor_of_one_reading_is_not_accused(layers: int, slots: int) -> None:
    """Axes of different lengths, or of length one, are unambiguous."""
    assert check_layout(untagged(layers, slots), time_ns=0) == []
