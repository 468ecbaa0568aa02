"""Which device bytes really move where the two ends of a page-row pool differ in width.

SGLang's copy kernels take one item size for both ends, the host page's: a page's place on the
device is its number times that size, whatever the device tensor's own page is. So nothing is cut
off at the end of each page: every page but the first is taken from somewhere else.
"""

import msgspec

from hicache_dbg.tracer.events import FaultClass, Finding
from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.view import View

__all__ = ["item_finding", "moved_slots"]


def moved_slots(device: View, item_bytes: int, page: int) -> tuple[int, int]:
    """First and last device slot, counted over all pages, that a copy of ``page`` touches.

    Slots lie one after another at ``device``'s own width.
    """
    width = device.slot_bytes
    return page * item_bytes // width, ((page + 1) * item_bytes - 1) // width


def item_finding(mirror: MirrorViews, finding: Finding) -> Finding:
    """``finding``, or for two widths of one page-row pool one that says what moves instead."""
    device, host = mirror.device.get(finding.component), mirror.host.get(finding.component)
    if (
        finding.cls is not FaultClass.ROW_WIDTH
        or not mirror.page_indexed
        or device is None
        or host is None
        or host.page_span == device.page_span
    ):
        return finding
    if finding.op:  # of one copy: what the general check says of the slots does not hold here
        facts, _, _ = finding.message.partition("; slots ")
        message = f"{facts}; {_rule(mirror, device, host)}"
    else:
        message = _message(mirror, device, host)
    return msgspec.structs.replace(finding, message=message, slots="")


def _rule(mirror: MirrorViews, device: View, host: View) -> str:
    slots, item, unit = device.slots_per_page, host.page_span, mirror.index_unit
    count, rest = divmod(item, device.slot_bytes)
    moved = (
        f"bytes {item}p..{item}p+{item - 1}" if rest else f"{unit}s {count}p..{count}p+{count - 1}"
    )
    first, last = moved_slots(device, item, 1)
    return (
        f"SGLang's kernels take one item size, {item} B, for both ends, so page p moves device {moved} and not "
        f"{slots}p..{slots}p+{slots - 1} (page 1: {unit}s {first}..{last}, not {slots}..{2 * slots - 1})"
    )


def _message(mirror: MirrorViews, device: View, host: View) -> str:
    slots, item, unit = device.slots_per_page, host.page_span, mirror.index_unit
    total = device.pages * slots
    reach = moved_slots(device, item, device.pages - 1)[1] + 1
    lost = f"; device {unit}s {reach}..{total - 1} are never reached" if reach < total else ""
    return (
        f"{mirror.pool}.{device.component}: the host mirror ({mirror.host_cls}) holds {host.slot_bytes} B a {unit} "
        f"({item} B a page of {host.slots_per_page}), the device ({mirror.device_cls}) stores "
        f"{device.slot_bytes} B a {unit} ({device.page_span} B a page of {slots}, {device.dtype}); "
        f"{_rule(mirror, device, host)}{lost}"
    )
