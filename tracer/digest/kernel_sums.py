"""XXH3-64's arithmetic in Triton; the formulas are those of :mod:`hicache_dbg.tracer.digest.xxh3`."""

# Kernels are compiled by Triton, which gives their parameters types of its own.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# pyright: reportMissingImports=false

import triton
import triton.language as tl

from hicache_dbg.tracer.digest import xxh3
from hicache_dbg.tracer.digest.kernel_bytes import bytes_at

__all__ = [
    "PRIME64_1",
    "accumulated",
    "avalanche",
    "folded",
    "to_3",
    "to_8",
    "to_16",
    "to_128",
    "to_240",
    "u64",
    "with_block",
]

_PRIME32_1 = tl.constexpr(xxh3.PRIME32_1)
PRIME64_1 = tl.constexpr(xxh3.PRIME64_1)
_PRIME64_2 = tl.constexpr(xxh3.PRIME64_2)
_PRIME64_3 = tl.constexpr(xxh3.PRIME64_3)
_AVALANCHE_PRIME = tl.constexpr(xxh3.AVALANCHE_PRIME)
_RRMXMX_PRIME = tl.constexpr(xxh3.RRMXMX_PRIME)


@triton.jit
def accumulated(words, neighbours, secret):
    """Return what stripes [tiles, 16, 4] and their neighbouring words add to accumulators [tiles, 4]."""
    keyed = words ^ secret[None, :, :]
    return tl.sum((keyed & 0xFFFFFFFF) * (keyed >> 32) + neighbours, axis=1)


@triton.jit
def with_block(accumulators, words, neighbours, secret, scramble):
    """Return accumulators [tiles, 4] with a whole block added, and scrambled."""
    accumulators += accumulated(words, neighbours, secret)
    return (accumulators ^ (accumulators >> 47) ^ scramble) * _PRIME32_1


@triton.jit
def _mixed(start, at, inside, secret, first, slots, RUNS: tl.constexpr):
    low = bytes_at(start, at, inside, first, slots, 8, RUNS) ^ tl.load(secret)
    high = bytes_at(start, at + 8, inside, first, slots, 8, RUNS) ^ tl.load(secret + 8)
    return folded(low, high)


@triton.jit
def to_240(start, inside, length, secret, first, slots, RUNS: tl.constexpr):
    """Digest tiles of 129 to 240 bytes."""
    total = tl.zeros_like(start).to(tl.uint64) + u64(length) * PRIME64_1
    for at in range(8):
        total += _mixed(start, 16 * at, inside, secret + 16 * at, first, slots, RUNS)
    total = avalanche(total)
    for at in range(8, length // 16):
        total += _mixed(start, 16 * at, inside, secret + 16 * (at - 8) + 3, first, slots, RUNS)
    return avalanche(total + _mixed(start, length - 16, inside, secret + 119, first, slots, RUNS))


@triton.jit
def to_128(start, inside, length, secret, first, slots, RUNS: tl.constexpr):
    """Digest tiles of 17 to 128 bytes."""
    total = tl.zeros_like(start).to(tl.uint64) + u64(length) * PRIME64_1
    for pair in range((length - 1) // 32 + 1):
        front = 16 * pair
        words = secret + 32 * pair
        total += _mixed(start, front, inside, words, first, slots, RUNS)
        total += _mixed(start, length - front - 16, inside, words + 16, first, slots, RUNS)
    return avalanche(total)


@triton.jit
def to_16(start, inside, length, secret, first, slots, RUNS: tl.constexpr):
    """Digest tiles of 9 to 16 bytes."""
    low = bytes_at(start, 0, inside, first, slots, 8, RUNS)
    high = bytes_at(start, length - 8, inside, first, slots, 8, RUNS)
    low ^= tl.load(secret + 24) ^ tl.load(secret + 32)
    high ^= tl.load(secret + 40) ^ tl.load(secret + 48)
    swapped = ((low & 0x00FF00FF00FF00FF) << 8) | ((low >> 8) & 0x00FF00FF00FF00FF)
    swapped = ((swapped & 0x0000FFFF0000FFFF) << 16) | ((swapped >> 16) & 0x0000FFFF0000FFFF)
    swapped = (swapped << 32) | (swapped >> 32)
    return avalanche(u64(length) + swapped + high + folded(low, high))


@triton.jit
def to_8(start, inside, length, secret, first, slots, RUNS: tl.constexpr):
    """Digest tiles of 4 to 8 bytes."""
    combined = bytes_at(start, length - 4, inside, first, slots, 4, RUNS)
    combined += bytes_at(start, 0, inside, first, slots, 4, RUNS) << 32
    value = combined ^ tl.load(secret + 8) ^ tl.load(secret + 16)
    value ^= ((value << 49) | (value >> 15)) ^ ((value << 24) | (value >> 40))
    value *= _RRMXMX_PRIME
    value = (value ^ ((value >> 35) + u64(length))) * _RRMXMX_PRIME
    return value ^ (value >> 28)


@triton.jit
def to_3(start, inside, length, secret, first, slots, RUNS: tl.constexpr):
    """Digest tiles of 1 to 3 bytes."""
    combined = bytes_at(start, length - 1, inside, first, slots, 1, RUNS) | (u64(length) << 8)
    combined |= bytes_at(start, 0, inside, first, slots, 1, RUNS) << 16
    combined |= bytes_at(start, length // 2, inside, first, slots, 1, RUNS) << 24
    value = combined ^ ((tl.load(secret) ^ tl.load(secret + 4)) & 0xFFFFFFFF)
    value = (value ^ (value >> 33)) * _PRIME64_2
    value = (value ^ (value >> 29)) * _PRIME64_3
    return value ^ (value >> 32)


@triton.jit
def folded(one, other):
    """Return the 128-bit product's two halves, XORed."""
    return (one * other) ^ tl.umulhi(one, other)


@triton.jit
def avalanche(value):
    """Apply the final mixing of most digests."""
    value = (value ^ (value >> 37)) * _AVALANCHE_PRIME
    return value ^ (value >> 32)


@triton.jit
def u64(value):
    """Cast to an unsigned 64-bit integer."""
    return tl.cast(value, tl.uint64)
