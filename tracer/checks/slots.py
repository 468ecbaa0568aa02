"""Find and name the slots of a page that a copy cannot reach."""

from collections.abc import Collection

from hicache_dbg.tracer.view import View
from hicache_dbg.tracer.words import named

__all__ = ["never_copied", "slots_beyond"]


def slots_beyond(view: View, reach: int) -> list[int]:
    """Return the slots with bytes at or past offset ``reach`` from the page's base.

    A copy that moves ``reach`` bytes from the start of a page does not bring these slots
    completely.
    """
    return [
        slot
        for slot in range(view.slots_per_page)
        if any(offset + length > reach for offset, length in view.segments(slot, slot + 1))
    ]


def never_copied(unit: str, slots: Collection[int]) -> str:
    """Say that no copy reaches ``slots``, called ``unit``, of any page."""
    return f"{named(unit, slots)} of each page {'is' if len(slots) == 1 else 'are'} never copied"
