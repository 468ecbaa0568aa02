"""What the Triton kernels do with digests: store them, and roll them up over an operation's layers."""

# Kernels are compiled by Triton, which gives their parameters types of its own.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# pyright: reportMissingImports=false

import triton
import triton.language as tl

from hicache_dbg.tracer.digest import xxh3
from hicache_dbg.tracer.digest.job import JOB
from hicache_dbg.tracer.digest.kernel_sums import PRIME64_1, avalanche

__all__ = ["finish"]

_GENERATION = tl.constexpr(xxh3.PRIME64_2)
_WRITE = tl.constexpr(xxh3.PRIME64_3)
_LAYERS = tl.constexpr(JOB.index("layers"))
_LAST = tl.constexpr(JOB.index("last"))
_ARRIVALS = tl.constexpr(JOB.index("arrivals"))
_DIGESTS = tl.constexpr(JOB.index("digests"))
_ROW = tl.constexpr(JOB.index("row"))
_NUMBERS = tl.constexpr(JOB.index("numbers"))
_ENTRIES = tl.constexpr(JOB.index("entries"))
_GENERATIONS = tl.constexpr(JOB.index("generations"))
_WRITES = tl.constexpr(JOB.index("writes"))
_ROLLUPS = tl.constexpr(JOB.index("rollups"))
_SIZE = tl.constexpr(JOB.index("size"))
_VERDICTS = tl.constexpr(JOB.index("verdicts"))


@triton.jit
def finish(got, at, live, digests, row, job, TOGETHER: tl.constexpr):
    """Store the digests. In a watched operation's last launch, also settle the pages.

    ``TOGETHER``: how many layers the program that settles a page rolls up together; 0 to only store.
    """
    here = digests.to(tl.pointer_type(tl.int64)) + tl.program_id(1).to(tl.int64) * row + at
    tl.store(here, got.to(tl.int64, bitcast=True), mask=live)
    if TOGETHER > 0:
        _arrived(at, live, job.to(tl.pointer_type(tl.int64)), TOGETHER)


@triton.jit
def _arrived(at, live, words, TOGETHER: tl.constexpr):
    """Count the pages' digests; the program that stores a page's last one settles the page."""
    tl.debug_barrier()  # all threads store their digests before any of them counts those
    arrivals = tl.load(words + _ARRIVALS).to(tl.pointer_type(tl.int64)) + at
    before = tl.atomic_add(arrivals, live.to(tl.int64), mask=live)
    last = live & (before == tl.load(words + _LAST) - 1)
    if tl.max(last.to(tl.int32), axis=0) != 0:
        tl.debug_barrier()  # all threads count before any of them reads
        tl.store(arrivals, at.to(tl.int64) * 0, mask=last)
        _settle(at, last, words, tl.load(words + _LAYERS), TOGETHER)


@triton.jit
def _settle(at, mine, words, layers, TOGETHER: tl.constexpr):
    """Roll up over layers, as :func:`hicache_dbg.tracer.digest.rollup.rolled`; store or compare."""
    entry = _row(words, _ENTRIES, at, mine)
    live = mine & (entry >= 0) & (entry < tl.load(words + _SIZE))
    total = _row(words, _GENERATIONS, at, live).to(tl.uint64, bitcast=True) * _GENERATION
    total += _row(words, _WRITES, at, live).to(tl.uint64, bitcast=True) * _WRITE
    digests = tl.load(words + _DIGESTS).to(tl.pointer_type(tl.int64)) + at
    row = tl.load(words + _ROW)
    numbers = tl.load(words + _NUMBERS).to(tl.pointer_type(tl.uint64))
    for first in range(0, layers.to(tl.int32), TOGETHER):
        layer = first + tl.arange(0, TOGETHER)[:, None]
        here = (layer < layers) & live[None, :]
        digest = _other_programs(digests[None, :] + layer * row, here)
        number = tl.load(numbers + layer, mask=layer < layers, other=0)
        mixed = avalanche(digest.to(tl.uint64, bitcast=True) + (number + 1) * PRIME64_1)
        total += tl.sum(tl.where(here, mixed, 0), axis=0)
    got = tl.where(total == 0, 1, total).to(tl.int64, bitcast=True)
    rollup = tl.load(words + _ROLLUPS).to(tl.pointer_type(tl.int64)) + entry
    verdicts = tl.load(words + _VERDICTS)
    if verdicts == 0:
        tl.store(rollup, got, mask=live)
    else:
        equal = live & (tl.load(rollup, mask=live, other=0) == got)
        tl.store(verdicts.to(tl.pointer_type(tl.int64)) + at, equal.to(tl.int64), mask=mine)


@triton.jit
def _row(words, field, at, mask):
    """Load each page's entry in one of the operation's int64 lists."""
    return tl.load(tl.load(words + field).to(tl.pointer_type(tl.int64)) + at, mask=mask, other=-1)


@triton.jit
def _other_programs(place, mask):
    # Bypass this multiprocessor's L1, which does not see others' stores.
    return tl.load(place, mask=mask, other=0, cache_modifier=".cg")
