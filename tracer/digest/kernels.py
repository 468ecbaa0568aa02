"""The Triton kernels: XXH3-64 of many tiles in one launch, stored or compared with expectations.

The one module that imports triton. Formulas and constants: :mod:`hicache_dbg.tracer.digest.xxh3`.
Every run-time argument is a 64-bit integer, addresses included, and none is specialised: one
compiled kernel serves every launch of a geometry.
"""

# Kernels are compiled by Triton, which gives their parameters types of its own.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# pyright: reportMissingImports=false

import triton
import triton.language as tl

from hicache_dbg.tracer.digest import xxh3

__all__ = [
    "FIXED",
    "SETTLE",
    "TABLE",
    "VARYING",
    "long_tiles",
    "settle_pages",
    "short_tiles",
]

#: What kernels read from device memory: the secret's words at every offset, then the accumulators.
TABLE = (*xxh3.SECRET_WORDS, *xxh3.INITIAL)

#: The run-time arguments that differ from launch to launch, in order.
#:
#: ``bases``: base address of each layer, one grid row each. ``ids``, ``id_step``, ``id_unit``,
#: ``count``: page ``i`` is ``ids[i * id_step] // id_unit``, ``i < count``. ``digests``, ``row``:
#: int64 [layers, count] with ``row`` elements from layer to layer: written, or, where ``ring`` is
#: not 0, expected. ``ring``, ``counter``, ``capacity``, ``tag``: where violations go, see
#: :class:`hicache_dbg.tracer.digest.ring.ViolationRing`.
VARYING = (
    *("bases", "ids", "id_step", "id_unit", "count", "digests", "row"),
    *("ring", "counter", "capacity", "tag"),
)
#: The arguments after these, which belong to a slot range of a view.
#:
#: ``table``: :data:`TABLE`. ``pages``, ``page_stride``: the view's extent and stride. ``offset``:
#: of a tile in one piece. ``first``, ``slots``: the slots of a tile in runs. ``size``: a tile's.
FIXED = ("table", "pages", "page_stride", "offset", "first", "slots", "size")

#: The arguments of :func:`settle_pages`, in order.
#:
#: ``digests``, ``row``: int64 [layers, capacity] with ``row`` elements from layer to layer.
#: ``layers``, ``count``: the layers' numbers, and how many. ``head``: where an operation's tag lies,
#: and behind it the count of pages found equal. ``pages``, ``keys``, ``capacity``: an entry and a
#: key for each page; the entry -1 stands for no page. ``rollups``: the table of entries. ``compare``:
#: 0 to store roll-ups there, 1 to compare with them. ``ring``, ``counter``, ``room``: where the tiles
#: of pages that differ go, see :class:`hicache_dbg.tracer.digest.ring.ViolationRing`.
SETTLE = (
    *("digests", "row", "layers", "count", "head", "pages", "keys", "capacity"),
    *("rollups", "compare", "ring", "counter", "room"),
)

_ARGUMENTS = (*VARYING, *FIXED)
_INITIAL_AT = tl.constexpr(len(xxh3.SECRET_WORDS))
_PRIME32_1 = tl.constexpr(xxh3.PRIME32_1)
_PRIME64_1 = tl.constexpr(xxh3.PRIME64_1)
_PRIME64_2 = tl.constexpr(xxh3.PRIME64_2)
_PRIME64_3 = tl.constexpr(xxh3.PRIME64_3)
_AVALANCHE_PRIME = tl.constexpr(xxh3.AVALANCHE_PRIME)
_RRMXMX_PRIME = tl.constexpr(xxh3.RRMXMX_PRIME)


@triton.jit(do_not_specialize=_ARGUMENTS)
def long_tiles(
    bases,
    ids,
    id_step,
    id_unit,
    count,
    digests,
    row,
    ring,
    counter,
    capacity,
    tag,
    table,
    pages,
    page_stride,
    offset,
    first,
    slots,
    size,
    P: tl.constexpr,
    STAGES: tl.constexpr,
    SIZE: tl.constexpr,
    UNIT: tl.constexpr,
    TAIL_UNIT: tl.constexpr,
    STRIPED: tl.constexpr,
    RUNS: tl.constexpr,
):
    """Tiles of more than 240 bytes, ``P`` to a program, 16 stripes of 8 words at a step.

    ``STAGES``: blocks being loaded at a time. ``SIZE``: the size where it is fixed, else 0.
    ``UNIT``: bytes (16, 8, 4, 2 or 1) that can be loaded at once wherever a stripe begins, and, if
    less than 16, wherever a row does; ``TAIL_UNIT`` the same for the last stripe, which ends with
    the tile. ``RUNS``: (offset, slot stride, row bytes, rows, row stride) of each run, empty for
    tiles in one piece. ``STRIPED``: no stripe crosses rows.
    """
    at = tl.program_id(0) * P + tl.arange(0, P)
    start, live, inside = _tiles(at, bases, ids, id_step, id_unit, count, pages, page_stride)
    start += offset
    expected = _expected(at, live, digests, row, ring)
    if SIZE > 0:
        n_blocks: tl.constexpr = (SIZE - 1) // 1024
        rest: tl.constexpr = (SIZE - 1) % 1024 // 64
        length = SIZE
    else:
        length = size.to(tl.int32)
        n_blocks = (length - 1) // 1024
        rest = (length - 1) % 1024 // 64
    words = table.to(tl.pointer_type(tl.uint64))
    stripe = tl.arange(0, 16)[:, None]
    pair = tl.arange(0, 4)[None, :] * 16
    is_rest = stripe < rest
    tail_at = tl.where(is_rest, n_blocks * 1024 + stripe * 64, length - 64)
    tail_mask = inside[:, None, None] & (stripe <= rest)[None, :, :]
    tail_even, tail_odd = _stripes(
        start, tail_at, tail_mask, first, slots, TAIL_UNIT, STRIPED, RUNS
    )
    even = tl.broadcast_to(tl.load(words + _INITIAL_AT + pair // 8), (P, 4))
    odd = tl.broadcast_to(tl.load(words + _INITIAL_AT + 1 + pair // 8), (P, 4))
    secret = words + stripe * 8 + pair
    even_secret, odd_secret = tl.load(secret), tl.load(secret + 8)
    even_scramble, odd_scramble = tl.load(words + 128 + pair), tl.load(words + 136 + pair)
    whole = inside[:, None, None]
    for block in tl.range(n_blocks, num_stages=STAGES):
        at_block = block * 1024 + stripe * 64
        data_even, data_odd = _stripes(start, at_block, whole, first, slots, UNIT, STRIPED, RUNS)
        even += _accumulated(data_even, data_odd, even_secret)
        odd += _accumulated(data_odd, data_even, odd_secret)
        even = _scrambled(even, even_scramble)
        odd = _scrambled(odd, odd_scramble)
    secret = words + tl.where(is_rest, stripe * 8, 121) + pair
    used = stripe <= rest
    even += _accumulated(tail_even, tail_odd, tl.load(secret, mask=used, other=0))
    odd += _accumulated(tail_odd, tail_even, tl.load(secret + 8, mask=used, other=0))
    even ^= tl.load(words + 11 + pair)
    odd ^= tl.load(words + 19 + pair)
    total = tl.sum(_folded(even, odd), axis=1) + _u64(length) * _PRIME64_1
    got = tl.where(inside, _avalanche(total), 0)
    _finish(got, expected, at, live, digests, row, ring, counter, capacity, tag)


@triton.jit(do_not_specialize=_ARGUMENTS)
def short_tiles(
    bases,
    ids,
    id_step,
    id_unit,
    count,
    digests,
    row,
    ring,
    counter,
    capacity,
    tag,
    table,
    pages,
    page_stride,
    offset,
    first,
    slots,
    size,
    P: tl.constexpr,
    RUNS: tl.constexpr,
):
    """Tiles of 1 to 240 bytes, one to a thread, read byte by byte: any size, any alignment."""
    at = tl.program_id(0) * P + tl.arange(0, P)
    start, live, inside = _tiles(at, bases, ids, id_step, id_unit, count, pages, page_stride)
    start += offset
    expected = _expected(at, live, digests, row, ring)
    secret = table.to(tl.pointer_type(tl.uint64))
    length = size.to(tl.int32)
    if length > 128:
        got = _to_240(start, inside, length, secret, first, slots, RUNS)
    elif length > 16:
        got = _to_128(start, inside, length, secret, first, slots, RUNS)
    elif length > 8:
        got = _to_16(start, inside, length, secret, first, slots, RUNS)
    elif length > 3:
        got = _to_8(start, inside, length, secret, first, slots, RUNS)
    else:
        got = _to_3(start, inside, length, secret, first, slots, RUNS)
    got = tl.where(inside, got, 0)
    _finish(got, expected, at, live, digests, row, ring, counter, capacity, tag)


@triton.jit(do_not_specialize=SETTLE)
def settle_pages(
    digests,
    row,
    layers,
    count,
    head,
    pages,
    keys,
    capacity,
    rollups,
    compare,
    ring,
    counter,
    room,
    P: tl.constexpr,
    LAYERS: tl.constexpr,
):
    """Roll digests up over layers, and store or compare; ``P`` pages to a program.

    The formula is :func:`hicache_dbg.tracer.digest.rollup.rolled`. ``LAYERS`` are looked at together.
    """
    at = tl.program_id(0) * P + tl.arange(0, P)
    page = tl.load(pages.to(tl.pointer_type(tl.int64)) + at, mask=at < capacity, other=-1)
    live = page >= 0
    mine = digests.to(tl.pointer_type(tl.int64)) + at
    total = tl.load(keys.to(tl.pointer_type(tl.uint64)) + at, mask=live, other=0)
    for first in range(0, count.to(tl.int32), LAYERS):
        layer = first + tl.arange(0, LAYERS)[:, None]
        here = (layer < count) & live[None, :]
        digest = tl.load(mine[None, :] + layer * row, mask=here, other=0)
        number = tl.load(layers.to(tl.pointer_type(tl.uint64)) + layer, mask=layer < count, other=0)
        mixed = _avalanche(digest.to(tl.uint64, bitcast=True) + (number + 1) * _PRIME64_1)
        total += tl.sum(tl.where(here, mixed, 0), axis=0)
    got = tl.where(total == 0, 1, total).to(tl.int64, bitcast=True)
    entry = rollups.to(tl.pointer_type(tl.int64)) + page
    if compare == 0:
        tl.store(entry, got, mask=live)
    else:
        known = tl.load(entry, mask=live, other=0)
        operation = head.to(tl.pointer_type(tl.int64))
        tl.atomic_add(operation + 1, tl.sum((live & (known == got)).to(tl.int64), axis=0))
        bad = live & (known != 0) & (known != got)
        if tl.max(bad.to(tl.int32), axis=0) != 0:
            tag = tl.load(operation)
            for layer in range(count.to(tl.int32)):
                digest = tl.load(mine + layer * row, mask=bad, other=0)
                _record(digest, bad, at, layer, ring, counter, room, tag)


@triton.jit
def _tiles(at, bases, ids, id_step, id_unit, count, pages, page_stride):
    """Base address of each page, which are asked for, and which of these the view really has."""
    live = at < count
    index = tl.load(ids.to(tl.pointer_type(tl.int64)) + at * id_step, mask=live, other=-1)
    page = index
    if id_unit > 1:
        page = index // id_unit
    inside = (index >= 0) & (page < pages)
    base = tl.load(bases.to(tl.pointer_type(tl.int64)) + tl.program_id(1))
    return base + tl.where(inside, page, 0) * page_stride, live, inside


@triton.jit
def _expected(at, live, digests, row, ring):
    """Expectations, asked for first and used last, so that nothing waits for them."""
    here = digests.to(tl.pointer_type(tl.int64)) + tl.program_id(1).to(tl.int64) * row + at
    return tl.load(here, mask=live & (ring != 0), other=0)


@triton.jit
def _finish(got, expected, at, live, digests, row, ring, counter, capacity, tag):
    """Store the digests, or put those that differ from a known expectation into the ring."""
    layer = tl.program_id(1).to(tl.int64)
    got = got.to(tl.int64, bitcast=True)
    if ring == 0:
        tl.store(digests.to(tl.pointer_type(tl.int64)) + layer * row + at, got, mask=live)
    else:
        bad = live & (expected != 0) & (expected != got)
        _record(got, bad, at, layer, ring, counter, capacity, tag)


@triton.jit
def _record(got, bad, at, layer, ring, counter, capacity, tag):
    """Append a record for each bad tile, and count it; the oldest give way."""
    ones = tl.where(bad, 1, 0).to(tl.int64)
    counters = counter.to(tl.pointer_type(tl.int64)) + at * 0
    slot = tl.atomic_add(counters, ones, mask=bad)
    record = ring.to(tl.pointer_type(tl.int64)) + slot % capacity * 4
    tl.store(record, tag + at * 0, mask=bad)
    tl.store(record + 1, layer + at * 0, mask=bad)
    tl.store(record + 2, at.to(tl.int64), mask=bad)
    tl.store(record + 3, got, mask=bad)


@triton.jit
def _stripes(
    start,
    at,
    mask,
    first,
    slots,
    UNIT: tl.constexpr,
    STRIPED: tl.constexpr,
    RUNS: tl.constexpr,
):
    """The even and the odd words [tiles, 16, 4] of stripes at byte ``at`` [16, 1] of each tile."""
    if UNIT == 16:
        # Said here and not in a helper: a hint on a call's result is lost when it is inlined.
        address = tl.multiple_of(start.to(tl.pointer_type(tl.uint64)), 16)
        place = _placed(at // 16, first, slots, 16, RUNS) * 2 + tl.arange(0, 8)[None, :]
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
    """Every other word, from ``BEYOND`` bytes into each stripe on, put together from its units."""
    per: tl.constexpr = 8 // UNIT
    within = tl.arange(0, 4)[None, :] * (2 * per) + BEYOND // UNIT
    word = tl.zeros([address.shape[0], 16, 4], tl.uint64)
    for part in tl.static_range(per):
        if STRIPED:
            place = _placed(at // UNIT, first, slots, UNIT, RUNS) + within + part
        else:
            place = _placed(at // UNIT + within + part, first, slots, UNIT, RUNS)
        word |= _loaded(address, place, mask).to(tl.uint64) << (part * UNIT * 8)
    return word


@triton.jit
def _loaded(address, place, mask):
    # Read once: it should not push out of the cache what the engine reads again.
    pointer = address[:, None, None] + place[None, :, :]
    return tl.load(pointer, mask=mask, other=0, eviction_policy="evict_first")


@triton.jit
def _placed(position, first, slots, UNIT: tl.constexpr, RUNS: tl.constexpr):
    """Where the tile's unit ``position`` lies from the page's base, in units."""
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
    """The same for ``position`` units into one run. Unsigned, so that it divides by a product."""
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


@triton.jit
def _accumulated(words, neighbours, secret):
    """What stripes [tiles, 16, 4] and the words beside theirs add to accumulators [tiles, 4]."""
    keyed = words ^ secret[None, :, :]
    return tl.sum((keyed & 0xFFFFFFFF) * (keyed >> 32) + neighbours, axis=1)


@triton.jit
def _scrambled(accumulators, secret):
    return (accumulators ^ (accumulators >> 47) ^ secret) * _PRIME32_1


@triton.jit
def _bytes(start, at, inside, first, slots, N: tl.constexpr, RUNS: tl.constexpr):
    """The little-endian integer of ``N`` bytes at byte ``at`` of each tile."""
    address = start.to(tl.pointer_type(tl.uint8))
    value = tl.zeros_like(start).to(tl.uint64)
    for part in tl.static_range(N):
        place = _placed(at + part, first, slots, 1, RUNS)
        value |= tl.load(address + place, mask=inside, other=0).to(tl.uint64) << (8 * part)
    return value


@triton.jit
def _mixed(start, at, inside, secret, first, slots, RUNS: tl.constexpr):
    low = _bytes(start, at, inside, first, slots, 8, RUNS) ^ tl.load(secret)
    high = _bytes(start, at + 8, inside, first, slots, 8, RUNS) ^ tl.load(secret + 8)
    return _folded(low, high)


@triton.jit
def _to_240(start, inside, length, secret, first, slots, RUNS: tl.constexpr):
    total = tl.zeros_like(start).to(tl.uint64) + _u64(length) * _PRIME64_1
    for at in range(8):
        total += _mixed(start, 16 * at, inside, secret + 16 * at, first, slots, RUNS)
    total = _avalanche(total)
    for at in range(8, length // 16):
        total += _mixed(start, 16 * at, inside, secret + 16 * (at - 8) + 3, first, slots, RUNS)
    return _avalanche(total + _mixed(start, length - 16, inside, secret + 119, first, slots, RUNS))


@triton.jit
def _to_128(start, inside, length, secret, first, slots, RUNS: tl.constexpr):
    total = tl.zeros_like(start).to(tl.uint64) + _u64(length) * _PRIME64_1
    for pair in range((length - 1) // 32 + 1):
        front = 16 * pair
        words = secret + 32 * pair
        total += _mixed(start, front, inside, words, first, slots, RUNS)
        total += _mixed(start, length - front - 16, inside, words + 16, first, slots, RUNS)
    return _avalanche(total)


@triton.jit
def _to_16(start, inside, length, secret, first, slots, RUNS: tl.constexpr):
    low = _bytes(start, 0, inside, first, slots, 8, RUNS)
    high = _bytes(start, length - 8, inside, first, slots, 8, RUNS)
    low ^= tl.load(secret + 24) ^ tl.load(secret + 32)
    high ^= tl.load(secret + 40) ^ tl.load(secret + 48)
    swapped = ((low & 0x00FF00FF00FF00FF) << 8) | ((low >> 8) & 0x00FF00FF00FF00FF)
    swapped = ((swapped & 0x0000FFFF0000FFFF) << 16) | ((swapped >> 16) & 0x0000FFFF0000FFFF)
    swapped = (swapped << 32) | (swapped >> 32)
    return _avalanche(_u64(length) + swapped + high + _folded(low, high))


@triton.jit
def _to_8(start, inside, length, secret, first, slots, RUNS: tl.constexpr):
    combined = _bytes(start, length - 4, inside, first, slots, 4, RUNS)
    combined += _bytes(start, 0, inside, first, slots, 4, RUNS) << 32
    value = combined ^ tl.load(secret + 8) ^ tl.load(secret + 16)
    value ^= ((value << 49) | (value >> 15)) ^ ((value << 24) | (value >> 40))
    value *= _RRMXMX_PRIME
    value = (value ^ ((value >> 35) + _u64(length))) * _RRMXMX_PRIME
    return value ^ (value >> 28)


@triton.jit
def _to_3(start, inside, length, secret, first, slots, RUNS: tl.constexpr):
    combined = _bytes(start, length - 1, inside, first, slots, 1, RUNS) | (_u64(length) << 8)
    combined |= _bytes(start, 0, inside, first, slots, 1, RUNS) << 16
    combined |= _bytes(start, length // 2, inside, first, slots, 1, RUNS) << 24
    value = combined ^ ((tl.load(secret) ^ tl.load(secret + 4)) & 0xFFFFFFFF)
    value = (value ^ (value >> 33)) * _PRIME64_2
    value = (value ^ (value >> 29)) * _PRIME64_3
    return value ^ (value >> 32)


@triton.jit
def _folded(one, other):
    return (one * other) ^ tl.umulhi(one, other)


@triton.jit
def _avalanche(value):
    value = (value ^ (value >> 37)) * _AVALANCHE_PRIME
    return value ^ (value >> 32)


@triton.jit
def _u64(value):
    return tl.cast(value, tl.uint64)
