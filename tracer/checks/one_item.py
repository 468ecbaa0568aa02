"""Which bytes really move where a copy takes one item size for both ends and they differ in width.

A page's place at either end is its number times that size, the host page's, whatever the device
tensor's own page is. So nothing is cut off at the end of each page: every page but the first is
taken from somewhere else.
"""

from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.view import View

__all__ = ["is_displaced", "moved_instead", "moved_slots", "never_reached"]


def moved_slots(device: View, item_bytes: int, page: int) -> tuple[int, int]:
    """First and last device slot, counted over all pages, that a copy of ``page`` touches.

    Slots lie one after another at ``device``'s own width.
    """
    width = device.slot_bytes
    return page * item_bytes // width, ((page + 1) * item_bytes - 1) // width


def is_displaced(mirror: MirrorViews, device: View, host: View) -> bool:
    """Whether copies of this component move other bytes than those of the page they are told."""
    return mirror.one_item and host.page_span != device.page_span


def moved_instead(mirror: MirrorViews, device: View, host: View) -> str:
    """What a copy of page p moves, in words."""
    slots, item, unit = device.slots_per_page, host.page_span, mirror.index_unit
    count, rest = divmod(item, device.slot_bytes)
    moved = (
        f"bytes {item}p..{item}p+{item - 1}" if rest else f"{unit}s {count}p..{count}p+{count - 1}"
    )
    first, last = moved_slots(device, item, 1)
    return (
        f"a copy takes one item size, {item} B, for both ends, so page p moves device {moved} and not "
        f"{slots}p..{slots}p+{slots - 1} (page 1: {unit}s {first}..{last}, not {slots}..{2 * slots - 1})"
    )


def never_reached(mirror: MirrorViews, device: View, host: View) -> str:
    """Which device slots no copy touches, in words; empty where there are none."""
    total = device.pages * device.slots_per_page
    reach = moved_slots(device, host.page_span, device.pages - 1)[1] + 1
    return f"; device {mirror.index_unit}s {reach}..{total - 1} are never reached" * (reach < total)
