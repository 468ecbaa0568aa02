"""XXH3-64 with the default secret and seed 0: its constants, and a plain reference.

The formulas are those of the XXH3 specification, https://github.com/Cyan4973/xxHash,
doc/xxhash_spec.md ("XXH3 Algorithm Overview"), one function for each of its length classes. The
reference is slow and is there to be read and tested against; kernels take the constants from here.
"""

from collections.abc import Callable
from typing import Final

__all__ = [
    "AVALANCHE_PRIME",
    "BLOCK_BYTES",
    "INITIAL",
    "LONGEST_SHORT",
    "PRIME32_1",
    "PRIME64_1",
    "PRIME64_2",
    "PRIME64_3",
    "RRMXMX_PRIME",
    "SECRET_WORDS",
    "STRIPE_BYTES",
    "digest",
]

SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
PRIME32_1: Final = 0x9E3779B1
PRIME32_2: Final = 0x85EBCA77
PRIME32_3: Final = 0xC2B2AE3D
PRIME64_1: Final = 0x9E3779B185EBCA87
PRIME64_2: Final = 0xC2B2AE3D27D4EB4F
PRIME64_3: Final = 0x165667B19E3779F9
PRIME64_4: Final = 0x85EBCA77C2B2AE63
PRIME64_5: Final = 0x27D4EB2F165667C5
AVALANCHE_PRIME: Final = 0x165667919E3779F9
RRMXMX_PRIME: Final = 0x9FB21C651E98DF25

STRIPE_BYTES: Final = 64
#: Stripes to a block follow from the secret: (192 - 64) / 8 = 16.
BLOCK_BYTES: Final = 1024
#: The longest input that is not hashed in stripes.
LONGEST_SHORT: Final = 240

#: The eight accumulators before the first stripe.
INITIAL: Final[tuple[int, ...]] = (
    PRIME32_3,
    PRIME64_1,
    PRIME64_2,
    PRIME64_3,
    PRIME64_4,
    PRIME32_2,
    PRIME64_5,
    PRIME32_1,
)
#: The secret's little-endian 64-bit word at every byte offset.
SECRET_WORDS: Final = tuple(
    int.from_bytes(SECRET[at : at + 8], "little") for at in range(len(SECRET) - 7)
)

_U64: Final = (1 << 64) - 1


def digest(data: bytes) -> int:
    """XXH3-64 of ``data`` with seed 0.

    Raises:
        ValueError: If ``data`` is empty: a tile has at least one byte.
    """
    if not data:
        raise ValueError("no bytes to digest: expected a tile of at least one byte")
    for longest, of_class in _CLASSES:
        if len(data) <= longest:
            return of_class(data)
    return _long(data)


def _to_3(data: bytes) -> int:
    size = len(data)
    combined = data[size - 1] | size << 8 | data[0] << 16 | data[size >> 1] << 24
    hashed = combined ^ (SECRET_WORDS[0] & 0xFFFFFFFF) ^ (SECRET_WORDS[4] & 0xFFFFFFFF)
    hashed = (hashed ^ hashed >> 33) * PRIME64_2 & _U64
    hashed = (hashed ^ hashed >> 29) * PRIME64_3 & _U64
    return hashed ^ hashed >> 32


def _to_8(data: bytes) -> int:
    size = len(data)
    combined = _word(data, size - 4, 4) + (_word(data, 0, 4) << 32)
    hashed = combined ^ SECRET_WORDS[8] ^ SECRET_WORDS[16]
    hashed ^= _rotated(hashed, 49) ^ _rotated(hashed, 24)
    hashed = hashed * RRMXMX_PRIME & _U64
    hashed = (hashed ^ (hashed >> 35) + size) * RRMXMX_PRIME & _U64
    return hashed ^ hashed >> 28


def _to_16(data: bytes) -> int:
    size = len(data)
    low = _word(data, 0) ^ SECRET_WORDS[24] ^ SECRET_WORDS[32]
    high = _word(data, size - 8) ^ SECRET_WORDS[40] ^ SECRET_WORDS[48]
    swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
    return _avalanche(size + swapped + high + _folded(low, high))


def _to_128(data: bytes) -> int:
    size = len(data)
    total = size * PRIME64_1
    for pair in range((size - 1) // 32 + 1):
        total += _mixed(data, 16 * pair, 32 * pair)
        total += _mixed(data, size - 16 * (pair + 1), 32 * pair + 16)
    return _avalanche(total)


def _to_240(data: bytes) -> int:
    size = len(data)
    total = size * PRIME64_1 + sum(_mixed(data, 16 * at, 16 * at) for at in range(8))
    total = _avalanche(total)
    total += sum(_mixed(data, 16 * at, 16 * (at - 8) + 3) for at in range(8, size // 16))
    return _avalanche(total + _mixed(data, size - 16, 119))


def _long(data: bytes) -> int:
    """More than 240 bytes: eight accumulators over stripes, scrambled after each whole block."""
    size = len(data)
    accumulators: list[int] = [*INITIAL]
    for stripe in range((size - 1) // STRIPE_BYTES):
        within = stripe % 16
        _accumulate(accumulators, data, stripe * STRIPE_BYTES, 8 * within)
        if within == 15:
            for lane in range(8):
                value = accumulators[lane]
                value ^= value >> 47 ^ SECRET_WORDS[128 + 8 * lane]
                accumulators[lane] = value * PRIME32_1 & _U64
    _accumulate(accumulators, data, size - STRIPE_BYTES, 121)
    total = size * PRIME64_1
    for lane in range(0, 8, 2):
        total += _folded(
            accumulators[lane] ^ SECRET_WORDS[11 + 8 * lane],
            accumulators[lane + 1] ^ SECRET_WORDS[19 + 8 * lane],
        )
    return _avalanche(total)


_CLASSES: Final[tuple[tuple[int, Callable[[bytes], int]], ...]] = (
    (3, _to_3),
    (8, _to_8),
    (16, _to_16),
    (128, _to_128),
    (LONGEST_SHORT, _to_240),
)


def _accumulate(accumulators: list[int], data: bytes, at: int, secret: int) -> None:
    for lane in range(8):
        word = _word(data, at + 8 * lane)
        keyed = word ^ SECRET_WORDS[secret + 8 * lane]
        accumulators[lane ^ 1] = accumulators[lane ^ 1] + word & _U64
        product = (keyed & 0xFFFFFFFF) * (keyed >> 32)
        accumulators[lane] = accumulators[lane] + product & _U64


def _mixed(data: bytes, at: int, secret: int) -> int:
    return _folded(
        _word(data, at) ^ SECRET_WORDS[secret], _word(data, at + 8) ^ SECRET_WORDS[secret + 8]
    )


def _folded(one: int, other: int) -> int:
    product = one * other
    return product & _U64 ^ product >> 64


def _avalanche(value: int) -> int:
    value &= _U64
    value = (value ^ value >> 37) * AVALANCHE_PRIME & _U64
    return value ^ value >> 32


def _rotated(value: int, left: int) -> int:
    return (value << left | value >> 64 - left) & _U64


def _word(data: bytes, at: int, size: int = 8) -> int:
    return int.from_bytes(data[at : at + size], "little")
