"""Where a tile's bytes are, as pieces from a page's base."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.tracer.view import Run, View


def view(slots: int, *runs: Run, pages: int = 4, span: int | None = None) -> View:
    """A view of one layer at address 4096, pages back to back."""
    payload = slots * sum(run.slot_bytes for run in runs)
    return View(
        pool="p",
        component="c",
        tier="host",
        layout="layer_first",
        dtype="uint8",
        itemsize=1,
        bases=(4096,),
        page_stride=span or payload,
        page_span=span or payload,
        pages=pages,
        slots_per_page=slots,
        runs=runs,
    )


FP8_PAGE = (Run(0, 128, 128), Run(64 * 128, 4, 4))


def test_a_page_of_keys_then_scales_is_one_piece() -> None:
    """The fp8 index-K page, 64 keys then 64 scales, is 8,448 contiguous bytes."""
    page = view(64, *FP8_PAGE)
    assert page.tile_bytes() == 8448
    assert page.segments() == [(0, 8448)]


def test_a_range_of_slots_has_a_piece_in_each_run() -> None:
    """Slots 2 and 3 of an fp8 page are 256 bytes of keys and 8 of scales."""
    assert view(64, *FP8_PAGE).segments(2, 4) == [(256, 256), (64 * 128 + 8, 8)]


def test_heads_kept_apart_come_out_in_slot_order() -> None:
    """A page_head host page gives slot 0's heads first, then slot 1's, as the device stores them."""
    page = view(2, Run(0, 16, 8, rows=2, row_stride=32), span=64)
    assert page.segments() == [(0, 8), (32, 8), (16, 8), (48, 8)]


def test_padding_between_pages_is_left_out() -> None:
    """The DeepSeek-V4 C128 page, 2 x 584 B padded to 1,728 B, has 1,168 B of payload."""
    page = view(2, Run(0, 576, 576), Run(1152, 8, 8), span=1728)
    assert page.tile_bytes() == 1168
    assert page.segments() == [(0, 1168)]
    assert page.page_span == 1728


def test_an_address_outside_the_tensor_is_refused_with_its_values() -> None:
    """Layer and page are both checked against what the tensor holds."""
    page = view(64, *FP8_PAGE)
    assert page.address(0, 3) == 4096 + 3 * 8448
    with pytest.raises(IndexError, match="layer 0, page 4 lie outside"):
        page.address(0, 4)


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 5), st.integers(0, 3), st.data())
def test_pieces_cover_each_payload_byte_of_the_range_once(
    slots: int, rows: int, width: int, gap: int, data: st.DataObject
) -> None:
    """Whatever the strides, the pieces of a slot range add up to its payload and never overlap."""
    row_stride = width + gap
    slot_stride = rows * row_stride
    page = view(slots, Run(0, slot_stride, width, rows, row_stride), span=slots * slot_stride)
    first = data.draw(st.integers(0, slots))
    last = data.draw(st.integers(first, slots))
    covered = [
        at for offset, size in page.segments(first, last) for at in range(offset, offset + size)
    ]
    assert len(covered) == len(set(covered)) == page.tile_bytes(last - first)
