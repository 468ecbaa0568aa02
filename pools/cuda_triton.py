"""The Triton kernel that moves chunks between two memories, one of them pinned host memory.

Either memory is reached by plain addresses; a table on the device holds the ids of both ends and
where each layer begins: host ids, device ids, host layers, device layers.
"""
# ruff: noqa: N803, PLR0917 (constants are upper-case and arguments many, as Triton's own are)

from typing import Any

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

__all__ = ["move_chunks"]


@triton.jit  # type: ignore[untyped-decorator]
def _chunk_starts(
    base: "Any",
    ids: "Any",
    slots: "Any",
    page: "Any",
    slot: "Any",
    live: "Any",
    SINGLE: tl.constexpr,
) -> "Any":
    """Where the chunks of some ids begin at one end, the inner axes left out."""
    number = tl.load(ids, mask=live, other=0)
    start = tl.load(base, mask=live, other=0)
    if SINGLE:
        return start + (number // slots) * page + (number % slots) * slot
    return start + number * page


#: Sizes and counts change with every operation; a kernel compiled for each of them would not pay.
_SIZES = [
    "n_ids", "n_layers", "first_layer", "slots",
    "h_page", "h_slot", "h_step0", "h_step1", "d_page", "d_slot", "d_step0", "d_step1",
    "count0", "count1", "items", "units", "parts", "tiles",
]  # fmt: skip


@triton.jit(do_not_specialize=_SIZES)  # type: ignore[untyped-decorator]
def move_chunks(
    table: "Any", n_ids: "Any", n_layers: "Any", first_layer: "Any", slots: "Any",
    h_page: "Any", h_slot: "Any", h_step0: "Any", h_step1: "Any",
    d_page: "Any", d_slot: "Any", d_step0: "Any", d_step1: "Any",
    count0: "Any", count1: "Any", items: "Any", units: "Any", parts: "Any", tiles: "Any",
    TO_HOST: tl.constexpr, SINGLE: tl.constexpr, WORD: tl.constexpr, WORD_BYTES: tl.constexpr,
    VEC: tl.constexpr, LINE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
) -> None:  # fmt: skip
    """Move ``items`` chunks of ``units`` units; an item is a layer, an id and an inner place.

    A unit is what one lane moves at a time: ``VEC`` words. A tile is ``ROWS`` items by ``COLS``
    units.
    """
    unit: tl.constexpr = VEC * WORD_BYTES
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        item = (tile // parts) * ROWS + tl.arange(0, ROWS)
        live = item < items
        outer = item // (count0 * count1)
        inner = item % (count0 * count1)
        i0 = (inner // count1).to(tl.int64)
        i1 = (inner % count1).to(tl.int64)
        ids = table + outer % n_ids
        bases = table + 2 * n_ids + first_layer + outer // n_ids
        host = _chunk_starts(bases, ids, slots, h_page, h_slot, live, SINGLE)
        host += i0 * h_step0 + i1 * h_step1
        device = _chunk_starts(bases + n_layers, ids + n_ids, slots, d_page, d_slot, live, SINGLE)
        device += i0 * d_step0 + i1 * d_step1
        column = ((tile % parts) * COLS + tl.arange(0, COLS))[None, :]
        if LINE > 0:
            column = column - ((host % LINE) // unit).to(tl.int32)[:, None]
        moved = (column >= 0) & (column < units) & live[:, None]
        moved = moved[:, :, None]
        word = (column * VEC)[:, :, None] + tl.arange(0, VEC)[None, None, :]
        at_host = tl.multiple_of(host.to(tl.pointer_type(WORD)), unit)[:, None, None] + word
        at_device = tl.multiple_of(device.to(tl.pointer_type(WORD)), unit)[:, None, None] + word
        if TO_HOST:
            tl.store(at_host, tl.load(at_device, mask=moved), mask=moved)
        else:
            tl.store(at_device, tl.load(at_host, mask=moved), mask=moved)
