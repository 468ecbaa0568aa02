"""The Triton kernels: XXH3-64 of many tiles in one launch, stored, or settled by page.

Their parts are in the modules ``kernel_*``; nothing else imports triton. Every run-time argument is a
64-bit integer, addresses included, and none is specialised: one compiled kernel serves every launch of
a geometry.

A grid has one row per layer, and a column for every ``P`` pages or, with ``LOOPS``, fewer.
"""

# Kernels are compiled by Triton, which gives their parameters types of its own.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# pyright: reportMissingImports=false

import triton
import triton.language as tl

from hicache_dbg.tracer.digest import xxh3
from hicache_dbg.tracer.digest.kernel_bytes import stripes
from hicache_dbg.tracer.digest.kernel_results import finish, finish_watched
from hicache_dbg.tracer.digest.kernel_sums import (
    PRIME64_1,
    accumulated,
    avalanche,
    folded,
    to_3,
    to_8,
    to_16,
    to_128,
    to_240,
    u64,
    with_block,
)

__all__ = ["FIXED", "TABLE", "VARYING", "WORDS_A_PROGRAM", "long_tiles", "sent", "short_tiles"]

#: What kernels read from device memory: the secret's words at every offset, then the accumulators.
TABLE = (*xxh3.SECRET_WORDS, *xxh3.INITIAL)

#: The run-time arguments that differ from launch to launch, in order.
#:
#: ``bases``: base address of each layer. ``ids``, ``id_step``, ``id_unit``, ``count``: page ``i`` is
#: ``ids[i * id_step] // id_unit``, ``i < count``. ``digests``, ``row``: int64 [layers, count], ``row``
#: elements between layers. ``job``: the watched operation's job, see
#: :data:`hicache_dbg.tracer.digest.job.JOB`; 0 in a kernel that settles nothing.
VARYING = ("bases", "ids", "id_step", "id_unit", "count", "digests", "row", "job")
#: The arguments after these, which belong to a slot range of a view.
#:
#: ``table``: :data:`TABLE`. ``pages``, ``page_stride``: the view's extent and stride. ``offset``: of a
#: contiguous tile in its page. ``first``, ``slots``: the slots of a tile in runs. ``size``: of a tile.
FIXED = ("table", "pages", "page_stride", "offset", "first", "slots", "size")

#: How many words one program of :func:`sent` sends.
WORDS_A_PROGRAM = 1024

_ARGUMENTS = (*VARYING, *FIXED)
_INITIAL_AT = tl.constexpr(len(xxh3.SECRET_WORDS))


@triton.jit(do_not_specialize=_ARGUMENTS)
def long_tiles(
    bases,
    ids,
    id_step,
    id_unit,
    count,
    digests,
    row,
    job,
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
    LOOPS: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """Digest tiles of more than 240 bytes, ``P`` at a time, in steps of 16 stripes of 8 words.

    ``STAGES``: how many blocks are loaded at a time. 0 loads one block ahead into registers: in a
    pipelined loop Triton loses the hint that L2 may evict the tiles first, and they flush it.
    ``SIZE``: the tile's size if it is fixed, else 0. ``UNIT``: bytes (16, 8, 4, 2 or 1) that can be
    loaded at once wherever a stripe begins and, if less than 16, wherever a row does. ``TAIL_UNIT``:
    the same for the last stripe, which ends with the tile. ``RUNS``: (offset, slot stride, row bytes,
    rows, row stride) of each run; empty for contiguous tiles. ``STRIPED``: no stripe crosses rows.
    ``TOGETHER``: how many layers of a watched operation are rolled up together; 0 for all but its
    last launch.
    """
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
    is_rest, used = stripe < rest, stripe <= rest
    tail_at = tl.where(is_rest, n_blocks * 1024 + stripe * 64, length - 64)
    last, step = _columns(count, P, LOOPS)
    for column in range(tl.program_id(0), last, step):
        at = column * P + tl.arange(0, P)
        start, live, inside = _tiles(at, bases, ids, id_step, id_unit, count, pages, page_stride)
        start += offset
        whole = inside[:, None, None]
        tail = whole & used[None, :, :]
        tail_even, tail_odd = stripes(start, tail_at, tail, first, slots, TAIL_UNIT, STRIPED, RUNS)
        even = tl.broadcast_to(tl.load(words + _INITIAL_AT + pair // 8), (P, 4))
        odd = tl.broadcast_to(tl.load(words + _INITIAL_AT + 1 + pair // 8), (P, 4))
        secret = words + stripe * 8 + pair
        even_secret, odd_secret = tl.load(secret), tl.load(secret + 8)
        even_scramble, odd_scramble = tl.load(words + 128 + pair), tl.load(words + 136 + pair)
        if STAGES > 0:
            for block in tl.range(n_blocks, num_stages=STAGES):
                here = block * 1024 + stripe * 64
                data_even, data_odd = stripes(start, here, whole, first, slots, UNIT, STRIPED, RUNS)
                even = with_block(even, data_even, data_odd, even_secret, even_scramble)
                odd = with_block(odd, data_odd, data_even, odd_secret, odd_scramble)
        else:
            there = whole & (stripe * 64 < n_blocks * 1024)[None, :, :]
            data_even, data_odd = stripes(
                start, stripe * 64, there, first, slots, UNIT, STRIPED, RUNS
            )
            for block in tl.range(1, n_blocks + 1, num_stages=1):
                here = block * 1024 + stripe * 64
                there = whole & (here < n_blocks * 1024)[None, :, :]
                next_even, next_odd = stripes(start, here, there, first, slots, UNIT, STRIPED, RUNS)
                even = with_block(even, data_even, data_odd, even_secret, even_scramble)
                odd = with_block(odd, data_odd, data_even, odd_secret, odd_scramble)
                data_even, data_odd = next_even, next_odd
        secret = words + tl.where(is_rest, stripe * 8, 121) + pair
        even += accumulated(tail_even, tail_odd, tl.load(secret, mask=used, other=0))
        odd += accumulated(tail_odd, tail_even, tl.load(secret + 8, mask=used, other=0))
        merged = folded(even ^ tl.load(words + 11 + pair), odd ^ tl.load(words + 19 + pair))
        total = tl.sum(merged, axis=1) + u64(length) * PRIME64_1
        got = tl.where(inside, avalanche(total), 0)
        if TOGETHER > 0:
            finish_watched(got, at, live, digests, row, job, TOGETHER)
        else:
            finish(got, at, live, digests, row)


@triton.jit(do_not_specialize=_ARGUMENTS)
def short_tiles(
    bases,
    ids,
    id_step,
    id_unit,
    count,
    digests,
    row,
    job,
    table,
    pages,
    page_stride,
    offset,
    first,
    slots,
    size,
    P: tl.constexpr,
    RUNS: tl.constexpr,
    LOOPS: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """Digest tiles of 1 to 240 bytes, one per thread, byte by byte: any size, any alignment."""
    secret = table.to(tl.pointer_type(tl.uint64))
    length = size.to(tl.int32)
    last, step = _columns(count, P, LOOPS)
    for column in range(tl.program_id(0), last, step):
        at = column * P + tl.arange(0, P)
        start, live, inside = _tiles(at, bases, ids, id_step, id_unit, count, pages, page_stride)
        start += offset
        if length > 128:
            got = to_240(start, inside, length, secret, first, slots, RUNS)
        elif length > 16:
            got = to_128(start, inside, length, secret, first, slots, RUNS)
        elif length > 8:
            got = to_16(start, inside, length, secret, first, slots, RUNS)
        elif length > 3:
            got = to_8(start, inside, length, secret, first, slots, RUNS)
        else:
            got = to_3(start, inside, length, secret, first, slots, RUNS)
        got = tl.where(inside, got, 0)
        if TOGETHER > 0:
            finish_watched(got, at, live, digests, row, job, TOGETHER)
        else:
            finish(got, at, live, digests, row)


@triton.jit(do_not_specialize=("source", "target", "count"))
def sent(source, target, count, WORDS: tl.constexpr):
    """Copy ``count`` 64-bit words from one address to another, on the device or in pinned memory."""
    at = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    words = tl.load(source.to(tl.pointer_type(tl.int64)) + at, mask=at < count)
    tl.store(target.to(tl.pointer_type(tl.int64)) + at, words, mask=at < count)


@triton.jit
def _columns(count, P: tl.constexpr, LOOPS: tl.constexpr):
    """Return the end and the step of the columns that this program takes: its own, or every nth."""
    if LOOPS:
        last, step = tl.cdiv(count.to(tl.int32), P), tl.num_programs(0)
    else:
        last, step = tl.program_id(0) + 1, 1
    return last, step


@triton.jit
def _tiles(at, bases, ids, id_step, id_unit, count, pages, page_stride):
    """Return each page's base address, whether it is requested, and whether the view has it."""
    live = at < count
    index = tl.load(ids.to(tl.pointer_type(tl.int64)) + at * id_step, mask=live, other=-1)
    page = index
    if id_unit > 1:
        page = index // id_unit
    inside = (index >= 0) & (page < pages)
    base = tl.load(bases.to(tl.pointer_type(tl.int64)) + tl.program_id(1))
    return base + tl.where(inside, page, 0) * page_stride, live, inside
