"""Slot ranges in words, and which slots of a page a copy cannot reach."""

from collections.abc import Iterable

from hicache_dbg.tracer.view import View

__all__ = ["counted", "named", "ranges", "slots_beyond"]


def ranges(numbers: Iterable[int], *, most: int = 6) -> str:
    """``0..3, 7, 9..12``: ascending numbers as ranges, the rest counted past ``most`` ranges."""
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
    """``layer 4``, ``layers 0..3, 7``: what the numbers are numbers of, and the numbers as ranges."""
    given = set(numbers)
    return f"{what}{'s' * (len(given) != 1)} {ranges(given)}"


def counted(count: int, what: str) -> str:
    """``1 tile``, ``9 tiles``: so many of something."""
    return f"{count} {what}{'s' * (count != 1)}"


def slots_beyond(view: View, reach: int) -> list[int]:
    """Slots of a page that have bytes at or past offset ``reach`` from the page's base.

    A copy that moves ``reach`` bytes from the start of a page does not bring these whole.
    """
    return [
        slot
        for slot in range(view.slots_per_page)
        if any(offset + length > reach for offset, length in view.segments(slot, slot + 1))
    ]
