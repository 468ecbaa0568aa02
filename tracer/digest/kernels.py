"""The Triton kernels: XXH3-64 of many tiles in one launch, stored, or settled by page.

Their parts are in the modules ``kernel_*``; nothing else imports triton.
Every run-time argument is a 64-bit integer, addresses included, and none is specialised: one
compiled kernel serves every launch of a geometry.
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
    scrambled,
    to_3,
    to_8,
    to_16,
    to_128,
    to_240,
    u64,
)

__all__ = ["FIXED", "TABLE", "VARYING", "WORDS_A_PROGRAM", "long_tiles", "sent", "short_tiles"]

#: What kernels read from device memory: the secret's words at every offset, then the accumulators.
TABLE = (*xxh3.SECRET_WORDS, *xxh3.INITIAL)

#: The run-time arguments that differ from launch to launch, in order.
#:
#: ``bases``: base address of each layer, one grid row each. ``ids``, ``id_step``, ``id_unit``,
#: ``count``: page ``i`` is ``ids[i * id_step] // id_unit``, ``i < count``. ``digests``, ``row``:
#: int64 [layers, count] with ``row`` elements from layer to layer. ``job``: the watched operation's
#: words, see :data:`hicache_dbg.tracer.digest.job.JOB`; 0 in a kernel that settles nothing.
VARYING = ("bases", "ids", "id_step", "id_unit", "count", "digests", "row", "job")
#: The arguments after these, which belong to a slot range of a view.
#:
#: ``table``: :data:`TABLE`. ``pages``, ``page_stride``: the view's extent and stride. ``offset``:
#: of a tile in one piece. ``first``, ``slots``: the slots of a tile in runs. ``size``: a tile's.
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
    TOGETHER: tl.constexpr,
):
    """Tiles of more than 240 bytes, ``P`` to a program, 16 stripes of 8 words at a step.

    ``STAGES``: blocks being loaded at a time. ``SIZE``: the size where it is fixed, else 0.
    ``UNIT``: bytes (16, 8, 4, 2 or 1) that can be loaded at once wherever a stripe begins, and, if
    less than 16, wherever a row does; ``TAIL_UNIT`` the same for the last stripe, which ends with
    the tile. ``RUNS``: (offset, slot stride, row bytes, rows, row stride) of each run, empty for
    tiles in one piece. ``STRIPED``: no stripe crosses rows. ``TOGETHER``: of how many layers a
    watched operation's digests are rolled up together; 0 for all but its last launch.
    """
    at = tl.program_id(0) * P + tl.arange(0, P)
    start, live, inside = _tiles(at, bases, ids, id_step, id_unit, count, pages, page_stride)
    start += offset
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
    tail_even, tail_odd = stripes(start, tail_at, tail_mask, first, slots, TAIL_UNIT, STRIPED, RUNS)
    even = tl.broadcast_to(tl.load(words + _INITIAL_AT + pair // 8), (P, 4))
    odd = tl.broadcast_to(tl.load(words + _INITIAL_AT + 1 + pair // 8), (P, 4))
    secret = words + stripe * 8 + pair
    even_secret, odd_secret = tl.load(secret), tl.load(secret + 8)
    even_scramble, odd_scramble = tl.load(words + 128 + pair), tl.load(words + 136 + pair)
    whole = inside[:, None, None]
    for block in tl.range(n_blocks, num_stages=STAGES):
        at_block = block * 1024 + stripe * 64
        data_even, data_odd = stripes(start, at_block, whole, first, slots, UNIT, STRIPED, RUNS)
        even += accumulated(data_even, data_odd, even_secret)
        odd += accumulated(data_odd, data_even, odd_secret)
        even = scrambled(even, even_scramble)
        odd = scrambled(odd, odd_scramble)
    secret = words + tl.where(is_rest, stripe * 8, 121) + pair
    used = stripe <= rest
    even += accumulated(tail_even, tail_odd, tl.load(secret, mask=used, other=0))
    odd += accumulated(tail_odd, tail_even, tl.load(secret + 8, mask=used, other=0))
    even ^= tl.load(words + 11 + pair)
    odd ^= tl.load(words + 19 + pair)
    total = tl.sum(folded(even, odd), axis=1) + u64(length) * PRIME64_1
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
    TOGETHER: tl.constexpr,
):
    """Tiles of 1 to 240 bytes, one to a thread, read byte by byte: any size, any alignment."""
    at = tl.program_id(0) * P + tl.arange(0, P)
    start, live, inside = _tiles(at, bases, ids, id_step, id_unit, count, pages, page_stride)
    start += offset
    secret = table.to(tl.pointer_type(tl.uint64))
    length = size.to(tl.int32)
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
    """``count`` words of 64 bits, from one address to another; a target in pinned memory is on the host."""
    at = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    words = tl.load(source.to(tl.pointer_type(tl.int64)) + at, mask=at < count)
    tl.store(target.to(tl.pointer_type(tl.int64)) + at, words, mask=at < count)


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
