"""Which bytes move if a copy uses one item size for two ends of different width.

A page's offset at either end is then its number times the host page's size, whatever the size of
the device tensor's own page. So pages are not truncated; every page but the first is read from the
wrong place.
"""

from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.view import View

__all__ = ["is_displaced", "moved_instead", "moved_slots", "never_reached"]


def moved_slots(device: View, item_bytes: int, page: int) -> tuple[int, int]:
    """Return the first and last device slot, over all pages, that a copy of ``page`` touches.

    Slots are contiguous at ``device``'s own width.
    """
    width = device.slot_bytes
    return page * item_bytes // width, ((page + 1) * item_bytes - 1) // width


def is_displaced(mirror: MirrorViews, device: View, host: View) -> bool:
    """Return whether copies of this component move bytes of other pages than those named."""
    return mirror.one_item and host.page_span != device.page_span


def moved_instead(mirror: MirrorViews, device: View, host: View) -> str:
    """Describe what a copy of page p really moves."""
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
    """Describe the device slots that no copy reaches; empty if there are none."""
    total = device.pages * device.slots_per_page
    reach = moved_slots(device, host.page_span, device.pages - 1)[1] + 1
    return f"; device {mirror.index_unit}s {reach}..{total - 1} are never reached" * (reach < total)
