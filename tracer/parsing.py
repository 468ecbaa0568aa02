"""Parsers of the gate's values: each turns a variable's text into a value, or says what is allowed."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

__all__ = ["Rejected", "digits", "globs", "member", "number", "path", "whole", "words"]

E = TypeVar("E", bound=StrEnum)


class Rejected(Exception):  # noqa: N818 - a signal to the reader, never seen outside
    """Carries what is allowed from a parser to the reader, which knows the variable's name."""


def member(kind: type[E]) -> Callable[[str], E]:
    """Return a parser of the values of ``kind``, in any case."""

    def parse(text: str) -> E:
        try:
            return kind(text.lower())
        except ValueError:
            raise Rejected("one of " + ", ".join(kind)) from None

    return parse


def number(low: float, high: float, what: str) -> Callable[[str], float]:
    """Return a parser of numbers from ``low`` to ``high``, described as ``what``."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise Rejected(what) from None
        if not low <= value <= high:
            raise Rejected(what)
        return value

    return parse


def whole(low: int, high: int, what: str) -> Callable[[str], int]:
    """Return a parser of whole numbers from ``low`` to ``high``, described as ``what``."""

    def parse(text: str) -> int:
        value = digits(text)
        if value is None or not low <= value <= high:
            raise Rejected(what)
        return value

    return parse


def digits(text: str) -> int | None:
    """Return the number written in ``text`` as plain decimal digits, or None."""
    # int() refuses thousands of digits with an error of its own.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def words(text: str) -> tuple[str, ...]:
    """Split at commas; empty parts are dropped."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def globs(text: str) -> tuple[str, ...]:
    """Parse comma-separated globs, at least one."""
    found = words(text)
    if not found:
        raise Rejected("comma-separated globs such as *index_k*")
    return found


def path(text: str) -> Path:
    """Parse a path, whose ``~`` is expanded."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise Rejected("a path; there is no such user's home") from None
