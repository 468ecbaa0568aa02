"""Encode entries in journald's native protocol, and enforce its rules for field names.

journald silently drops a field whose name breaks a rule and keeps the rest of the entry. Here such
a name is an error before anything is sent.

Format: https://systemd.io/JOURNAL_NATIVE_PROTOCOL/
"""

import re
import struct
from collections.abc import Collection, Mapping
from functools import lru_cache

__all__ = ["FieldNameError", "Values", "encode_entry"]

LONGEST_NAME = 64

#: A field's value; or several, which ``journalctl`` matches one by one.
Values = str | tuple[str, ...]

# Names with a leading underscore are reserved for fields that journald itself adds.
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


class FieldNameError(ValueError):
    """A field name that journald would drop silently."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"journald would drop the field {name!r}: expected 1 to {LONGEST_NAME} characters "
            "of A-Z, 0-9 and _, the first a letter"
        )
        self.name = name


def encode_entry(fields: Mapping[str, Values]) -> bytes:
    """Encode ``fields`` as one journal entry, in their order; one with several values is repeated.

    A value with a line break is preceded by its length (64 bits, little endian). Lone surrogates
    are written as escapes, so that no text can make an entry fail.

    Raises:
        FieldNameError: a name breaks journald's rules.
    """
    _check(tuple(fields))
    pairs: Collection[tuple[str, Values]] = fields.items()
    if tuple in map(type, fields.values()):
        pairs = [(name, value) for name, values in pairs for value in _each(values)]
    text = "".join([f"{name}={value}\n" for name, value in pairs])
    if text.count("\n") == len(pairs):
        return text.encode(errors="backslashreplace")
    return b"".join(_field(name.encode(), str(value)) for name, value in pairs)


def _each(values: Values) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else values


@lru_cache(maxsize=256)
def _check(names: tuple[str, ...]) -> None:
    """Check the field names of an entry; cached, because each event type has only a few sets."""
    for name in names:
        if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
            raise FieldNameError(name)


def _field(name: bytes, value: str) -> bytes:
    data = value.encode(errors="backslashreplace")
    if b"\n" in data:
        return b"%s\n%s%s\n" % (name, struct.pack("<Q", len(data)), data)
    return b"%s=%s\n" % (name, data)
