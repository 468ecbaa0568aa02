"""Make text from untrusted sources safe to print on a terminal."""

from typing import Any, TypeVar

import msgspec

from hicache_dbg.exporters.line import printable

__all__ = ["visible"]

T = TypeVar("T", bound=msgspec.Struct)


def visible(data: T) -> T:
    """Return ``data`` with every text reduced to one line of printable characters."""
    return msgspec.convert(_printable(msgspec.to_builtins(data)), type(data))


def _printable(data: Any) -> Any:
    match data:
        case str():
            return printable(data)
        case dict():
            return {printable(name): _printable(value) for name, value in data.items()}
        case list() | tuple():
            return [_printable(value) for value in data]
        case _:
            return data
