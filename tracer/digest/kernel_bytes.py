"""Where the bytes of a tile lie, and how the Triton kernels load them."""

# Kernels are compiled by Triton, which gives their parameters types of its own.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# pyright: reportMissingImports=false

import triton
import triton.language as tl

__all__ = ["bytes_at", "stripes"]


@triton.jit
def stripes(
    start,
    at,
    mask,
    first,
    slots,
    UNIT: tl.constexpr,
    STRIPED: tl.constexpr,
    RUNS: tl.constexpr,
):
    """Load the even and the odd words [tiles, 16, 4] of stripes at byte ``at`` [16, 1] of each tile."""
    if UNIT == 16:
        # The hint must be here: on the result of a helper it would be lost by inlining.
        address = tl.multiple_of(start.to(tl.pointer_type(tl.uint64)), 16)
        place = placed(at // 16, first, slots, 16, RUNS) * 2 + tl.arange(0, 8)[None, :]
        words = _loaded(address, place, mask)
        even, odd = tl.split(tl.reshape(words, (start.shape[0], 16, 4, 2)))
    else:
        if UNIT == 8:
            address = start.to(tl.pointer_type(tl.uint64))
        elif UNIT == 4:
            address = start.to(tl.pointer_type(tl.uint32))
        elif UNIT == 2:
            address = start.to(tl.pointer_type(tl.uint16))
        else:
            address = start.to(tl.pointer_type(tl.uint8))
        even = _words(address, at, 0, mask, first, slots, UNIT, STRIPED, RUNS)
        odd = _words(address, at, 8, mask, first, slots, UNIT, STRIPED, RUNS)
    return even, odd


@triton.jit
def _words(
    address,
    at,
    BEYOND: tl.constexpr,
    mask,
    first,
    slots,
    UNIT: tl.constexpr,
    STRIPED: tl.constexpr,
    RUNS: tl.constexpr,
):
    """Load every other word, from ``BEYOND`` bytes into each stripe on, assembled from its units."""
    per: tl.constexpr = 8 // UNIT
    within = tl.arange(0, 4)[None, :] * (2 * per) + BEYOND // UNIT
    word = tl.zeros([address.shape[0], 16, 4], tl.uint64)
    for part in tl.static_range(per):
        if STRIPED:
            place = placed(at // UNIT, first, slots, UNIT, RUNS) + within + part
        else:
            place = placed(at // UNIT + within + part, first, slots, UNIT, RUNS)
        word |= _loaded(address, place, mask).to(tl.uint64) << (part * UNIT * 8)
    return word


@triton.jit
def _loaded(address, place, mask):
    # Read once: do not evict from L2 what the engine will read again.
    pointer = address[:, None, None] + place[None, :, :]
    return tl.load(pointer, mask=mask, other=0, eviction_policy="evict_first")


@triton.jit
def bytes_at(start, at, inside, first, slots, N: tl.constexpr, RUNS: tl.constexpr):
    """Load the little-endian integer of ``N`` bytes at byte ``at`` of each tile."""
    address = start.to(tl.pointer_type(tl.uint8))
    value = tl.zeros_like(start).to(tl.uint64)
    for part in tl.static_range(N):
        place = placed(at + part, first, slots, 1, RUNS)
        value |= tl.load(address + place, mask=inside, other=0).to(tl.uint64) << (8 * part)
    return value


@triton.jit
def placed(position, first, slots, UNIT: tl.constexpr, RUNS: tl.constexpr):
    """Return where the tile's unit ``position`` lies, relative to the page's base, in units."""
    place = position
    begin = 0
    for index in tl.static_range(len(RUNS)):
        here = _in_run(position - begin, first, UNIT, *RUNS[index])
        place = here if index == 0 else tl.where(position >= begin, here, place)
        begin += slots.to(tl.int32) * (RUNS[index][2] * RUNS[index][3] // UNIT)
    return place


@triton.jit
def _in_run(
    position,
    first,
    UNIT: tl.constexpr,
    OFFSET: tl.constexpr,
    SLOT_STRIDE: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    ROWS: tl.constexpr,
    ROW_STRIDE: tl.constexpr,
):
    """Return the same for ``position`` units into one run; unsigned, for cheaper division by constants."""
    begin = first.to(tl.int32) * (SLOT_STRIDE // UNIT) + OFFSET // UNIT
    if ROWS == 1 and SLOT_STRIDE == ROW_BYTES:
        place = position + begin
    else:
        row_units: tl.constexpr = ROW_BYTES // UNIT
        within = position.to(tl.uint32)
        row = within // row_units
        slot = row // ROWS
        place = begin + slot.to(tl.int32) * (SLOT_STRIDE // UNIT)
        place += (row - slot * ROWS).to(tl.int32) * (ROW_STRIDE // UNIT)
        place += (within - row * row_units).to(tl.int32)
    return place
