"""Draw both ends of a pool's components where they differ in size."""

from collections.abc import Iterator, Sequence

from hicache_dbg.exporters.html.page import Bar, Geometry
from hicache_dbg.tracer.events import ComponentInfo, MirrorInfo
from hicache_dbg.tracer.words import counted, named

__all__ = ["geometry", "same_size"]


def geometry(mirrors: Sequence[MirrorInfo]) -> Iterator[Geometry]:
    """Yield a drawing for each component whose ends differ in bytes per slot, if both have any."""
    for mirror, device, host in _ends(mirrors):
        sizes = (device.slot_bytes, host.slot_bytes, device.page_bytes, host.page_bytes)
        if device.slot_bytes != host.slot_bytes and min(sizes) > 0:
            yield _drawn(mirror, device, host)


def same_size(mirrors: Sequence[MirrorInfo], drawn: Sequence[Geometry]) -> str:
    """Describe the components that need no drawing."""
    alike = [
        f"{_name(mirror, device)} {device.slot_bytes:,} B"
        for mirror, device, host in _ends(mirrors)
        if device.slot_bytes == host.slot_bytes
    ]
    if not alike:
        return ""
    return f"{'The others have' if drawn else 'All pools have'} the same bytes a slot at both ends: {', '.join(alike)}."


def _ends(
    mirrors: Sequence[MirrorInfo],
) -> Iterator[tuple[MirrorInfo, ComponentInfo, ComponentInfo]]:
    for mirror in mirrors:
        hosts = {part.name: part for part in mirror.host.components}
        for device in mirror.device.components:
            if device.name in hosts:
                yield mirror, device, hosts[device.name]


def _name(mirror: MirrorInfo, part: ComponentInfo) -> str:
    return mirror.pool if len(mirror.device.components) == 1 else f"{mirror.pool}.{part.name}"


def _drawn(mirror: MirrorInfo, device: ComponentInfo, host: ComponentInfo) -> Geometry:
    slots = mirror.device.slots_per_page
    longest = max(device.page_bytes, host.page_bytes)
    ends = [
        Bar(f"{tier}, {cls}, {part.dtype}", f"{part.page_bytes:,} B", part.page_bytes / longest)
        for tier, cls, part in (
            ("device", mirror.device.cls, device),
            ("host", mirror.host.cls, host),
        )
    ]
    fit = host.page_bytes // device.slot_bytes
    lost = named("slot", range(fit, slots)) if fit < slots else ""
    return Geometry(
        title=f"{_name(mirror, device)}: a page of {counted(slots, 'slot')}, "
        f"{device.slot_bytes:,} B each on the device, {host.slot_bytes:,} B on the host",
        ends=ends,
        lost=lost or "no room",
        note=f"The host's page has room for {named('slot', range(fit))}; never copied: {lost}."
        if lost and fit
        else "The ends do not hold the same bytes.",
    )
