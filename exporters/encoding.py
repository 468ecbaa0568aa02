"""Encode events as JSON, whatever their texts contain.

A request's id comes from outside. It may hold half a surrogate pair, which no encoding can represent,
or be of any length, and readers refuse long lines. Such a text must cost neither its event nor the
rest of the batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

__all__ = ["LONGEST_LINE", "encoded", "encoded_lines", "whole"]

#: Bytes of a line at most: DuckDB reads none that is longer.
LONGEST_LINE = 16 << 20
#: Characters that remain of each text of an event whose line would be longer.
_KEPT = 1000

_ENCODER = msgspec.json.Encoder()


def encoded(record: msgspec.Struct) -> bytes:
    """Return ``record`` as one line of JSON, lone surrogates escaped and long texts cut."""
    try:
        line = _ENCODER.encode(record)
    except UnicodeEncodeError:
        line = _ENCODER.encode(_texts(msgspec.to_builtins(record), whole))
    if len(line) > LONGEST_LINE:
        line = _ENCODER.encode(_texts(msgspec.json.decode(line), _cut))
    return line


def encoded_lines(records: Sequence[msgspec.Struct]) -> bytes:
    """Return ``records`` as lines of JSON, one each, with line breaks."""
    try:
        lines = _ENCODER.encode_lines(records)
    except UnicodeEncodeError:
        lines = None
    if lines is None or len(lines) > LONGEST_LINE:
        return b"".join(encoded(record) + b"\n" for record in records)
    return lines


def whole(text: str) -> str:
    """Return ``text`` with lone surrogates replaced by escapes."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _cut(text: str) -> str:
    return text if len(text) <= _KEPT else f"{text[:_KEPT]}... ({len(text)} characters)"


def _texts(data: Any, change: Callable[[str], str]) -> Any:
    match data:
        case str():
            return change(data)
        case dict():
            return {change(name): _texts(value, change) for name, value in data.items()}
        case list() | tuple():
            return [_texts(value, change) for value in data]
        case _:
            return data
