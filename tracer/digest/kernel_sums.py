"""XXH3-64's arithmetic in Triton; the formulas are those of :mod:`hicache_dbg.tracer.digest.xxh3`."""

# Kernels are compiled by Triton, which gives their parameters types of its own.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# pyright: reportMissingImports=false

import triton
import triton.language as tl

from hicache_dbg.tracer.digest import xxh3
from hicache_dbg.tracer.digest.kernel_bytes import bytes_at, stripes

__all__ = ["PRIME64_1", "avalanche", "long", "short"]

#: Where the kernels' table has the initial accumulators: behind the secret's words.
_INITIAL_AT = tl.constexpr(len(xxh3.SECRET_WORDS))
_PRIME32_1 = tl.constexpr(xxh3.PRIME32_1)
PRIME64_1 = tl.constexpr(xxh3.PRIME64_1)
_PRIME64_2 = tl.constexpr(xxh3.PRIME64_2)
_PRIME64_3 = tl.constexpr(xxh3.PRIME64_3)
_AVALANCHE_PRIME = tl.constexpr(xxh3.AVALANCHE_PRIME)
_RRMXMX_PRIME = tl.constexpr(xxh3.RRMXMX_PRIME)


@triton.jit
def long(
    start,
    inside,
    length,
    words,
    first,
    slots,
    UNIT: tl.constexpr,
    TAIL_UNIT: tl.constexpr,
    STRIPED: tl.constexpr,
    RUNS: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Digest tiles of more than 240 bytes, in blocks of 16 stripes of 8 words.

    A word adds to its own accumulator and to its neighbour's, so even and odd words are kept apart.
    While one block is added, the next one is being loaded into registers.
    """
    n_blocks, rest = (length - 1) // 1024, (length - 1) % 1024 // 64
    stripe = tl.arange(0, 16)[:, None]
    pair = tl.arange(0, 4)[None, :] * 16
    is_rest, used = stripe < rest, stripe <= rest
    whole = inside[:, None, None]
    tail = whole & used[None, :, :]
    tail_at = tl.where(is_rest, n_blocks * 1024 + stripe * 64, length - 64)
    tail_even, tail_odd = stripes(start, tail_at, tail, first, slots, TAIL_UNIT, STRIPED, RUNS)
    even = tl.broadcast_to(tl.load(words + _INITIAL_AT + pair // 8), (start.shape[0], 4))
    odd = tl.broadcast_to(tl.load(words + _INITIAL_AT + 1 + pair // 8), (start.shape[0], 4))
    secret = words + stripe * 8 + pair
    even_secret, odd_secret = tl.load(secret), tl.load(secret + 8)
    even_scramble, odd_scramble = tl.load(words + 128 + pair), tl.load(words + 136 + pair)
    data_even, data_odd = _block(start, 0, n_blocks, whole, first, slots, UNIT, STRIPED, RUNS)
    # Not pipelined: Triton would load asynchronously and lose the hint that L2 may evict the tiles.
    for block in tl.range(1, n_blocks + 1, num_stages=1, loop_unroll_factor=UNROLL):
        next_even, next_odd = _block(
            start, block, n_blocks, whole, first, slots, UNIT, STRIPED, RUNS
        )
        even = _with_block(even, data_even, data_odd, even_secret, even_scramble)
        odd = _with_block(odd, data_odd, data_even, odd_secret, odd_scramble)
        data_even, data_odd = next_even, next_odd
    secret = words + tl.where(is_rest, stripe * 8, 121) + pair
    even += _accumulated(tail_even, tail_odd, tl.load(secret, mask=used, other=0))
    odd += _accumulated(tail_odd, tail_even, tl.load(secret + 8, mask=used, other=0))
    merged = _folded(even ^ tl.load(words + 11 + pair), odd ^ tl.load(words + 19 + pair))
    return avalanche(tl.sum(merged, axis=1) + _u64(length) * PRIME64_1)


@triton.jit
def _block(
    start,
    block,
    n_blocks,
    inside,
    first,
    slots,
    UNIT: tl.constexpr,
    STRIPED: tl.constexpr,
    RUNS: tl.constexpr,
):
    """Load a block's even and odd words [tiles, 16, 4]; zeros past the last block."""
    at = block * 1024 + tl.arange(0, 16)[:, None] * 64
    there = inside & (at < n_blocks * 1024)[None, :, :]
    return stripes(start, at, there, first, slots, UNIT, STRIPED, RUNS)


@triton.jit
def _with_block(accumulators, words, neighbours, secret, scramble):
    """Return accumulators [tiles, 4] with a whole block added, and scrambled."""
    accumulators += _accumulated(words, neighbours, secret)
    return (accumulators ^ (accumulators >> 47) ^ scramble) * _PRIME32_1


@triton.jit
def _accumulated(words, neighbours, secret):
    """Return what stripes [tiles, 16, 4] and their neighbouring words add to accumulators [tiles, 4]."""
    keyed = words ^ secret[None, :, :]
    return tl.sum((keyed & 0xFFFFFFFF) * (keyed >> 32) + neighbours, axis=1)


@triton.jit
def short(start, inside, length, secret, first, slots, RUNS: tl.constexpr):
    """Digest tiles of 1 to 240 bytes, one per thread, byte by byte: any size, any alignment."""
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
    return got


@triton.jit
def _mixed(start, at, inside, secret, first, slots, RUNS: tl.constexpr):
    low = bytes_at(start, at, inside, first, slots, 8, RUNS) ^ tl.load(secret)
    high = bytes_at(start, at + 8, inside, first, slots, 8, RUNS) ^ tl.load(secret + 8)
    return _folded(low, high)


@triton.jit
def _to_240(start, inside, length, secret, first, slots, RUNS: tl.constexpr):
    """Digest tiles of 129 to 240 bytes."""
    total = tl.zeros_like(start).to(tl.uint64) + _u64(length) * PRIME64_1
    for at in range(8):
        total += _mixed(start, 16 * at, inside, secret + 16 * at, first, slots, RUNS)
    total = avalanche(total)
    for at in range(8, length // 16):
        total += _mixed(start, 16 * at, inside, secret + 16 * (at - 8) + 3, first, slots, RUNS)
    return avalanche(total + _mixed(start, length - 16, inside, secret + 119, first, slots, RUNS))


@triton.jit
def _to_128(start, inside, length, secret, first, slots, RUNS: tl.constexpr):
    """Digest tiles of 17 to 128 bytes."""
    total = tl.zeros_like(start).to(tl.uint64) + _u64(length) * PRIME64_1
    for pair in range((length - 1) // 32 + 1):
        front = 16 * pair
        words = secret + 32 * pair
        total += _mixed(start, front, inside, words, first, slots, RUNS)
        total += _mixed(start, length - front - 16, inside, words + 16, first, slots, RUNS)
    return avalanche(total)


@triton.jit
def _to_16(start, inside, length, secret, first, slots, RUNS: tl.constexpr):
    """Digest tiles of 9 to 16 bytes."""
    low = bytes_at(start, 0, inside, first, slots, 8, RUNS)
    high = bytes_at(start, length - 8, inside, first, slots, 8, RUNS)
    low ^= tl.load(secret + 24) ^ tl.load(secret + 32)
    high ^= tl.load(secret + 40) ^ tl.load(secret + 48)
    swapped = ((low & 0x00FF00FF00FF00FF) << 8) | ((low >> 8) & 0x00FF00FF00FF00FF)
    swapped = ((swapped & 0x0000FFFF0000FFFF) << 16) | ((swapped >> 16) & 0x0000FFFF0000FFFF)
    swapped = (swapped << 32) | (swapped >> 32)
    return avalanche(_u64(length) + swapped + high + _folded(low, high))


@triton.jit
def _to_8(start, inside, length, secret, first, slots, RUNS: tl.constexpr):
    """Digest tiles of 4 to 8 bytes."""
    combined = bytes_at(start, length - 4, inside, first, slots, 4, RUNS)
    combined += bytes_at(start, 0, inside, first, slots, 4, RUNS) << 32
    value = combined ^ tl.load(secret + 8) ^ tl.load(secret + 16)
    value ^= ((value << 49) | (value >> 15)) ^ ((value << 24) | (value >> 40))
    value *= _RRMXMX_PRIME
    value = (value ^ ((value >> 35) + _u64(length))) * _RRMXMX_PRIME
    return value ^ (value >> 28)


@triton.jit
def _to_3(start, inside, length, secret, first, slots, RUNS: tl.constexpr):
    """Digest tiles of 1 to 3 bytes."""
    combined = bytes_at(start, length - 1, inside, first, slots, 1, RUNS) | (_u64(length) << 8)
    combined |= bytes_at(start, 0, inside, first, slots, 1, RUNS) << 16
    combined |= bytes_at(start, length // 2, inside, first, slots, 1, RUNS) << 24
    value = combined ^ ((tl.load(secret) ^ tl.load(secret + 4)) & 0xFFFFFFFF)
    value = (value ^ (value >> 33)) * _PRIME64_2
    value = (value ^ (value >> 29)) * _PRIME64_3
    return value ^ (value >> 32)


@triton.jit
def _folded(one, other):
    """Return the 128-bit product's two halves, XORed."""
    return (one * other) ^ tl.umulhi(one, other)


@triton.jit
def avalanche(value):
    """Apply the final mixing of most digests."""
    value = (value ^ (value >> 37)) * _AVALANCHE_PRIME
    return value ^ (value >> 32)


@triton.jit
def _u64(value):
    """Cast to an unsigned 64-bit integer."""
    return tl.cast(value, tl.uint64)
