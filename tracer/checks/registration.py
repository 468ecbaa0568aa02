"""Compare both ends of a mirror, read off the real tensors, before the first byte moves."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass

from hicache_dbg.tracer.checks.one_item import is_displaced, moved_instead, never_reached
from hicache_dbg.tracer.checks.slots import never_copied, slots_beyond
from hicache_dbg.tracer.events import FaultClass, Finding
from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.view import View
from hicache_dbg.tracer.words import counted, ranges

__all__ = ["check_coverage", "check_mirror"]

CHECK = "registration"


def check_mirror(mirror: MirrorViews, *, time_ns: int, rank: int = 0) -> list[Finding]:
    """Return what is wrong with the geometry of both ends; empty if they fit.

    At most one finding per component: the first check that applies names the cause.
    """
    findings: list[Finding] = []
    for name, device in mirror.device.items():
        host = mirror.host.get(name)
        fault = _missing(mirror, device) if host is None else _compare(mirror, device, host)
        if fault is not None:
            findings.append(
                Finding(
                    time_ns=time_ns,
                    rank=rank,
                    pool=mirror.pool,
                    component=name,
                    check=CHECK,
                    **asdict(fault),
                )
            )
    return findings


def check_coverage(
    unmirrored: Mapping[str, int], waived: Collection[str], *, time_ns: int, rank: int = 0
) -> list[Finding]:
    """Report device pools that no copy ever reaches, unless they are waived by name.

    Args:
        unmirrored: bytes per page (over all layers) of each pool, by name.
        waived: names of the pools that are left out on purpose.
    """
    return [
        Finding(
            time_ns=time_ns,
            rank=rank,
            cls=FaultClass.SIDECAR_MISSING,
            pool=pool,
            check=CHECK,
            message=(
                f"{pool}: the device stores {page_bytes} B a page beside the pages that are copied, and no "
                "host pool mirrors it: after a load it holds what another page left there"
            ),
            expected=f"a mirror of {pool}, or a waiver",
            got="neither",
            advice="mirror the pool, or waive it by name if its bytes are never needed after a load",
        )
        for pool, page_bytes in unmirrored.items()
        if pool not in waived
    ]


@dataclass(frozen=True, slots=True)
class _Fault:
    """What is wrong with one component of a mirror; the fields are those of the finding."""

    cls: FaultClass
    message: str
    expected: str
    got: str
    slots: str = ""
    advice: str = ""


def _missing(mirror: MirrorViews, device: View) -> _Fault:
    return _Fault(
        FaultClass.SIDECAR_MISSING,
        f"{mirror.pool}: the device stores component {device.component} "
        f"({device.slot_bytes} B a {_slot(mirror)}) and the host pool {mirror.host_cls} has no mirror of it",
        f"a mirror of {device.component}",
        "none",
        advice="mirror the component, or waive it by name if its bytes are never needed after a load",
    )


def _compare(mirror: MirrorViews, device: View, host: View) -> _Fault | None:
    for check in (_row_width, _page_shape, _item_size, _layers):
        fault = check(mirror, device, host)
        if fault is not None:
            return fault
    return None


def _row_width(mirror: MirrorViews, device: View, host: View) -> _Fault | None:
    beyond = slots_beyond(device, host.page_span)
    # A host page without the padding keeps every byte; a longer one runs into the next page.
    if host.slot_bytes == device.slot_bytes and host.page_span <= device.page_span and not beyond:
        return None
    unit = _slot(mirror)
    longer = host.page_span - device.page_span
    if is_displaced(mirror, device, host):
        reach = moved_instead(mirror, device, host) + never_reached(mirror, device, host)
        beyond = []
    else:
        reach = (
            never_copied(unit, beyond)
            if beyond
            else f"the host page is {abs(longer)} B {'longer' if longer > 0 else 'shorter'} than the device's"
        )
    return _Fault(
        FaultClass.ROW_WIDTH,
        f"{mirror.pool}.{device.component}: the host mirror ({mirror.host_cls}) holds {host.slot_bytes} B a "
        f"{unit} ({host.page_span} B a page of {host.slots_per_page}), the device ({mirror.device_cls}) stores "
        f"{device.slot_bytes} B a {unit} ({device.page_span} B a page of {device.slots_per_page}, "
        f"{device.dtype}): {reach}",
        f"{device.slot_bytes} B a {unit}, {device.page_span} B a page",
        f"{host.slot_bytes} B a {unit}, {host.page_span} B a page",
        slots=ranges(beyond, most=64),
        advice=f"size {mirror.host_cls} from the device tensor's dtype and shape; until then run without the "
        "host tier, or with the dtype that its formula assumes",
    )


def _page_shape(mirror: MirrorViews, device: View, host: View) -> _Fault | None:
    if host.slots_per_page == device.slots_per_page:
        return None
    return _Fault(
        FaultClass.INDEX_SPACE,
        f"{mirror.pool}.{device.component}: a host page holds {counted(host.slots_per_page, 'slot')}, a device page "
        f"{device.slots_per_page}",
        f"{counted(device.slots_per_page, 'slot')} a page",
        f"{counted(host.slots_per_page, 'slot')} a page",
        advice="give both ends the same page size",
    )


def _item_size(mirror: MirrorViews, device: View, host: View) -> _Fault | None:
    if host.itemsize == device.itemsize and host.dtype == device.dtype:
        return None
    return _Fault(
        FaultClass.ROW_WIDTH,
        f"{mirror.pool}.{device.component}: the host tensor is {host.dtype} ({host.itemsize} B an element), the "
        f"device's {device.dtype} ({device.itemsize} B); the bytes of a page are equal, so elements were "
        "counted differently",
        f"{device.dtype}, {device.itemsize} B an element",
        f"{host.dtype}, {host.itemsize} B an element",
        advice="allocate both ends with one dtype",
    )


def _layers(mirror: MirrorViews, device: View, host: View) -> _Fault | None:
    if host.layers == device.layers:
        return None
    return _Fault(
        FaultClass.ROW_WIDTH,
        f"{mirror.pool}.{device.component}: the host mirror has "
        f"{counted(host.layers, 'layer')}, the device {device.layers}",
        counted(device.layers, "layer"),
        counted(host.layers, "layer"),
        advice="mirror every layer that owns this component, and no other",
    )


def _slot(mirror: MirrorViews) -> str:
    """Return what to call a slot: ``token`` if a slot holds one token, else ``slot``."""
    device = next(iter(mirror.device.values()))
    return "token" if mirror.tokens_per_page == device.slots_per_page else "slot"
