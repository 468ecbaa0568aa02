"""Format what messages are made of: numbers with their noun, ranges, whole sets, exceptions."""

from collections.abc import Iterable

__all__ = ["counted", "every", "failure", "named", "ranges"]

#: Most characters of an exception's message that are kept.
MOST_OF_A_MESSAGE = 1000


def ranges(numbers: Iterable[int], *, most: int = 6) -> str:
    """Format numbers as ascending ranges (``0..3, 7, 9..12``); past ``most`` ranges, only count."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    words = [str(a) if a == b else f"{a}..{b}" for a, b in found[:most]]
    left = sum(b - a + 1 for a, b in found[most:])
    return ", ".join(words) + (f" and {left} more" if left else "")


def named(what: str, numbers: Iterable[int]) -> str:
    """Format numbers with their noun: ``layer 4``, ``layers 0..3, 7``."""
    given = set(numbers)
    return f"{_noun(what, len(given))} {ranges(given)}"


def counted(count: int, what: str, spec: str = "") -> str:
    """Format a count with its noun: ``1 tile``, ``9 copies``; ``spec`` formats the number."""
    return f"{count:{spec}} {_noun(what, count)}"


def every(count: int, what: str) -> str:
    """Format a whole set with its noun: ``the one tile``, ``all 9 tiles``."""
    return f"the one {what}" if count == 1 else f"all {counted(count, what)}"


def failure(error: BaseException) -> str:
    """Format an exception, whatever its class makes of itself: ``ValueError: no such page``."""
    name = type(error).__name__
    try:
        message = str(error)
    except Exception as second:  # noqa: BLE001 - the host's own code
        message = f"its message raises {type(second).__name__}"
    cut = message[:MOST_OF_A_MESSAGE] + "..." if len(message) > MOST_OF_A_MESSAGE else message
    return f"{name}: {cut}"


def _noun(what: str, count: int) -> str:
    if count == 1:
        return what
    if what.endswith("y"):
        return f"{what[:-1]}ies"
    return f"{what}{'es' if what.endswith('s') else 's'}"
