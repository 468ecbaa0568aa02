"""Fields of protobuf messages, as bytes: a million messages a run are too many for its objects.

https://protobuf.dev/programming-guides/encoding describes the format.
"""

__all__ = ["fixed64", "message", "number", "text", "varint"]

_VARINT, _FIXED64, _BYTES = 0, 1, 2


def varint(value: int) -> bytes:
    """Return an integer of at most 64 bits; a negative one has all of them."""
    if 0 <= value < len(_SMALL):
        return _SMALL[value]
    return _varint(value & (1 << 64) - 1)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


_SMALL = [_varint(value) for value in range(1 << 14)]


def number(field: int, value: int) -> bytes:
    """Return a field that holds an integer, a boolean or an enum."""
    return varint(field << 3 | _VARINT) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """Return a field that holds an unsigned integer in eight bytes."""
    return varint(field << 3 | _FIXED64) + value.to_bytes(8, "little")


def message(field: int, body: bytes) -> bytes:
    """Return a field that holds a message."""
    return varint(field << 3 | _BYTES) + varint(len(body)) + body


def text(field: int, value: str) -> bytes:
    """Return a field that holds text; what UTF-8 cannot hold is replaced."""
    return message(field, value.encode(errors="replace"))
