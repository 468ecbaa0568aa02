"""XXH3-64 in plain torch operations, for devices on which the Triton kernels cannot run.

Unsigned 64-bit values are held in int64, whose additions and products wrap alike. Formulas and
constants: :mod:`hicache_dbg.tracer.digest.xxh3`.
"""

from functools import lru_cache
from typing import NamedTuple

import torch

from hicache_dbg.tracer.digest import xxh3

__all__ = ["digest_rows"]

_LOW = 0xFFFFFFFF


def digest_rows(data: torch.Tensor) -> torch.Tensor:
    """XXH3-64 (seed 0) of each row of ``data``, uint8 [rows, bytes], as int64 [rows] of its bits."""
    size = data.shape[1]
    if size > xxh3.LONGEST_SHORT:
        return _long(data)
    for longest, of_class in ((3, _to_3), (8, _to_8), (16, _to_16), (128, _to_128)):
        if size <= longest:
            return of_class(data)
    return _to_240(data)


def _long(data: torch.Tensor) -> torch.Tensor:
    rows, size = data.shape
    stripes = (size - 1) // xxh3.STRIPE_BYTES
    blocks, rest = divmod(stripes, 16)
    words = _as_words(data[:, : stripes * xxh3.STRIPE_BYTES])
    words = words.view(rows, stripes, 8)
    tables = _tables(data.device)
    per_stripe = _accumulated(words, tables.stripes.repeat(blocks + 1, 1)[:stripes])
    per_block = per_stripe[:, : 16 * blocks].view(rows, blocks, 16, 8).sum(2)
    accumulators = tables.initial.repeat(rows, 1)
    for block in range(blocks):
        accumulators = accumulators + per_block[:, block]
        accumulators = (accumulators ^ _right(accumulators, 47) ^ tables.scramble) * xxh3.PRIME32_1
    if rest:
        accumulators = accumulators + per_stripe[:, 16 * blocks :].sum(1)
    last = _as_words(data[:, size - xxh3.STRIPE_BYTES :])
    merged = (accumulators + _accumulated(last, tables.last)) ^ tables.merge
    total = _folded(merged[:, 0::2], merged[:, 1::2]).sum(1)
    return _avalanche(total + _signed(size * xxh3.PRIME64_1))


def _as_words(data: torch.Tensor) -> torch.Tensor:
    """Rows of bytes as rows of words: copied, so that they begin and follow at multiples of 8."""
    return data.clone(memory_format=torch.contiguous_format).view(torch.int64)


def _accumulated(words: torch.Tensor, secret: torch.Tensor) -> torch.Tensor:
    keyed = words ^ secret
    swapped = words.view(*words.shape[:-1], 4, 2).flip(-1).view(words.shape)
    return (keyed & _LOW) * _right(keyed, 32) + swapped


def _to_240(data: torch.Tensor) -> torch.Tensor:
    size = data.shape[1]
    total = _mixed(data, 0, 0) + _signed(size * xxh3.PRIME64_1)
    for at in range(1, 8):
        total = total + _mixed(data, 16 * at, 16 * at)
    total = _avalanche(total)
    for at in range(8, size // 16):
        total = total + _mixed(data, 16 * at, 16 * (at - 8) + 3)
    return _avalanche(total + _mixed(data, size - 16, 119))


def _to_128(data: torch.Tensor) -> torch.Tensor:
    size = data.shape[1]
    total = torch.full_like(data[:, 0], 0, dtype=torch.int64) + _signed(size * xxh3.PRIME64_1)
    for pair in range((size - 1) // 32 + 1):
        total = total + _mixed(data, 16 * pair, 32 * pair)
        total = total + _mixed(data, size - 16 * (pair + 1), 32 * pair + 16)
    return _avalanche(total)


def _to_16(data: torch.Tensor) -> torch.Tensor:
    size = data.shape[1]
    low = _word(data, 0) ^ _secret(24) ^ _secret(32)
    high = _word(data, size - 8) ^ _secret(40) ^ _secret(48)
    swapped = torch.zeros_like(low)
    for byte in range(8):
        swapped |= (_right(low, 8 * byte) & 0xFF) << (56 - 8 * byte)
    return _avalanche(swapped + high + _folded(low, high) + size)


def _to_8(data: torch.Tensor) -> torch.Tensor:
    size = data.shape[1]
    value = _word(data, size - 4, 4) + (_word(data, 0, 4) << 32)
    value = value ^ _secret(8) ^ _secret(16)
    value = value ^ (value << 49 | _right(value, 15)) ^ (value << 24 | _right(value, 40))
    value = value * _signed(xxh3.RRMXMX_PRIME)
    value = (value ^ (_right(value, 35) + size)) * _signed(xxh3.RRMXMX_PRIME)
    return value ^ _right(value, 28)


def _to_3(data: torch.Tensor) -> torch.Tensor:
    size = data.shape[1]
    value = _word(data, size - 1, 1) | _word(data, 0, 1) << 16 | _word(data, size // 2, 1) << 24
    value = (value | size << 8) ^ ((_secret(0) ^ _secret(4)) & _LOW)
    value = (value ^ _right(value, 33)) * _signed(xxh3.PRIME64_2)
    value = (value ^ _right(value, 29)) * _signed(xxh3.PRIME64_3)
    return value ^ _right(value, 32)


def _mixed(data: torch.Tensor, at: int, secret: int) -> torch.Tensor:
    return _folded(_word(data, at) ^ _secret(secret), _word(data, at + 8) ^ _secret(secret + 8))


def _folded(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the low half of the 128-bit product XOR its high half."""
    one_low, one_high = one & _LOW, _right(one, 32)
    other_low, other_high = other & _LOW, _right(other, 32)
    middle = one_high * other_low + _right(one_low * other_low, 32)
    other_middle = one_low * other_high + (middle & _LOW)
    high = one_high * other_high + _right(middle, 32) + _right(other_middle, 32)
    return (one * other) ^ high


def _avalanche(value: torch.Tensor) -> torch.Tensor:
    value = (value ^ _right(value, 37)) * _signed(xxh3.AVALANCHE_PRIME)
    return value ^ _right(value, 32)


def _word(data: torch.Tensor, at: int, size: int = 8) -> torch.Tensor:
    """Return the little-endian integer of ``size`` bytes at ``at`` of each row."""
    parts = data[:, at : at + size].to(torch.int64)
    value = parts[:, 0]
    for byte in range(1, size):
        value = value | parts[:, byte] << (8 * byte)
    return value


def _right(value: torch.Tensor, by: int) -> torch.Tensor:
    """Shift right logically."""
    return (value >> by) & ((1 << (64 - by)) - 1)


def _secret(at: int) -> int:
    return _signed(xxh3.SECRET_WORDS[at])


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (value >> 63 << 64)


class _Tables(NamedTuple):
    """The secret's words where stripes, scrambling and merging take them; first accumulators."""

    stripes: torch.Tensor
    scramble: torch.Tensor
    last: torch.Tensor
    merge: torch.Tensor
    initial: torch.Tensor


@lru_cache
def _tables(device: torch.device) -> _Tables:
    """Made once a device: making one waits for it."""

    def row(at: int) -> list[int]:
        return [_secret(at + 8 * lane) for lane in range(8)]

    initial = [_signed(value) for value in xxh3.INITIAL]
    values = ([row(8 * stripe) for stripe in range(16)], row(128), row(121), row(11), initial)
    return _Tables(*(torch.tensor(value, dtype=torch.int64, device=device) for value in values))
