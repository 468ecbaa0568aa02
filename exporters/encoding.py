"""Events as JSON, whatever their texts hold.

A request's id may come from anywhere, with half of a surrogate pair in it: no encoding has that, and one
such text must cost neither its event nor those that travel with it.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

__all__ = ["encoded", "encoded_lines", "whole"]

_ENCODER = msgspec.json.Encoder()


def encoded(record: msgspec.Struct) -> bytes:
    """``record`` as one line of JSON; lone surrogates are written as their escapes."""
    try:
        return _ENCODER.encode(record)
    except UnicodeEncodeError:
        return _ENCODER.encode(_whole(msgspec.to_builtins(record)))


def encoded_lines(records: Sequence[msgspec.Struct]) -> bytes:
    """``records`` as lines of JSON, one each, with its line break."""
    try:
        return _ENCODER.encode_lines(records)
    except UnicodeEncodeError:
        return b"".join(encoded(record) + b"\n" for record in records)


def whole(text: str) -> str:
    """``text``, with its lone surrogates as escapes."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _whole(data: Any) -> Any:
    match data:
        case str():
            return whole(data)
        case dict():
            return {whole(name): _whole(value) for name, value in data.items()}
        case list() | tuple():
            return [_whole(value) for value in data]
        case _:
            return data
