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
from hicache_dbg.tracer.digest.kernel_results import finish
from hicache_dbg.tracer.digest.kernel_sums import long, short

__all__ = ["FIXED", "TABLE", "VARYING", "WORDS_A_PROGRAM", "sent", "tiles"]

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


@triton.jit(do_not_specialize=(*VARYING, *FIXED))
def tiles(
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
    SIZE: tl.constexpr,
    UNIT: tl.constexpr,
    TAIL_UNIT: tl.constexpr,
    STRIPED: tl.constexpr,
    RUNS: tl.constexpr,
    UNROLL: tl.constexpr,
    LOOPS: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """Digest tiles, ``P`` to a program at a time.

    ``SIZE``: the tiles' size if it is fixed, else 0. ``UNIT``: bytes (16, 8, 4, 2 or 1) that can be
    loaded at once wherever a stripe begins and, if less than 16, wherever a row does; 0 for tiles of at
    most 240 bytes, which have no stripes and are read byte by byte. ``TAIL_UNIT``: the same for the last
    stripe, which ends with the tile. ``STRIPED``: no stripe crosses rows. ``RUNS``: (offset, slot stride,
    row bytes, rows, row stride) of each run; empty for contiguous tiles. ``UNROLL``: how many blocks a
    turn of the loop over them takes. ``LOOPS``: a program takes every nth column. ``TOGETHER``: see
    :func:`finish`.
    """
    length = SIZE if SIZE > 0 else size.to(tl.int32)
    words = table.to(tl.pointer_type(tl.uint64))
    last, step = _columns(count, P, LOOPS)
    for column in range(tl.program_id(0), last, step):
        at = column * P + tl.arange(0, P)
        start, live, inside = _tiles(at, bases, ids, id_step, id_unit, count, pages, page_stride)
        start += offset
        if UNIT > 0:
            got = long(
                *(start, inside, length, words, first, slots),
                *(UNIT, TAIL_UNIT, STRIPED, RUNS, UNROLL),
            )
        else:
            got = short(start, inside, length, words, first, slots, RUNS)
        finish(tl.where(inside, got, 0), at, live, digests, row, job, TOGETHER)


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
