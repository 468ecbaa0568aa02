"""Check that a host tensor has the order its layout tag names, and that all its users agree.

Two readings of the same size agree in every byte count, so only strides are compared.
"""

from collections.abc import Iterable, Mapping

from hicache_dbg.tracer.events import FaultClass, Finding
from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.view import View

__all__ = [
    "alike",
    "axis_order",
    "check_layout",
    "check_readings",
    "readings",
    "sizes_of",
]

CHECK = "layout"

#: Axes from the widest stride to the narrowest, by layout tag. In a page-indexed pool the slots lie
#: within the page's bytes, so only layers and pages have an order there.
ORDERS: Mapping[str, tuple[str, ...]] = {
    "layer_first": ("layer", "page", "slot", "head"),
    "page_first": ("page", "slot", "layer", "head"),
    "page_first_direct": ("page", "layer", "slot", "head"),
    "page_head": ("page", "head", "slot", "layer"),
}


def axis_order(view: View, *, page_indexed: bool) -> tuple[str, ...]:
    """Return the axes of a tensor from the widest stride to the narrowest, without those of size 1.

    Layers in separate tensors have no stride.
    """
    strides = {"page": view.page_stride} if view.pages > 1 else {}
    steps = {after - before for before, after in zip(view.bases, view.bases[1:], strict=False)}
    if len(steps) == 1:
        strides["layer"] = abs(steps.pop())
    run = view.runs[0]
    if not page_indexed and view.slots_per_page > 1:
        strides["slot"] = run.slot_stride
    if run.rows > 1:
        strides["head"] = run.row_stride
    return tuple(sorted(strides, key=lambda axis: -strides[axis]))


def readings(order: tuple[str, ...]) -> tuple[str, ...]:
    """Return the layout tags that match this order of axes; several if they coincide."""
    return tuple(
        tag
        for tag, axes in ORDERS.items()
        if tuple(axis for axis in axes if axis in order) == order
    )


def sizes_of(view: View, *, page_indexed: bool) -> dict[str, int]:
    """Return the length of each axis of a tensor, without axes that lie within its pages."""
    sizes = {"layer": view.layers, "page": view.pages}
    if not page_indexed:
        sizes |= {"slot": view.slots_per_page, "head": view.runs[0].rows}
    return sizes


def alike(sizes: Mapping[str, int], order: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tags under which a tensor with these axes in this order has the same shape.

    Two or more mean that the shape cannot tell which order the bytes have: axes of equal length may
    have been exchanged. Axes of length 1 have no order.
    """
    shape = tuple(sizes[axis] for axis in order)
    orders = {tag: tuple(axis for axis in axes if axis in order) for tag, axes in ORDERS.items()}
    same = [tag for tag, axes in orders.items() if tuple(sizes[axis] for axis in axes) == shape]
    distinct = {orders[tag]: tag for tag in reversed(same)}  # tags of one order are one reading
    return tuple(tag for tag in same if tag in distinct.values())


def check_layout(mirror: MirrorViews, *, time_ns: int, rank: int = 0) -> list[Finding]:
    """Check the layout tag of a mirror's host end against its strides."""
    findings = []
    for name, view in mirror.host.items():
        order = axis_order(view, page_indexed=mirror.page_indexed)
        fits = readings(order)
        if not view.layout:
            like = alike(sizes_of(view, page_indexed=mirror.page_indexed), order)
            if len(like) > 1:
                findings.append(
                    _finding(
                        mirror,
                        name,
                        f"the host tensor has no layout tag, and its shape fits {' and '.join(like)}: "
                        "which one its bytes are in is ambiguous",
                        expected="a layout tag",
                        got=" or ".join(like),
                        time_ns=time_ns,
                        rank=rank,
                    )
                )
        elif view.layout in ORDERS and view.layout not in fits:
            findings.append(
                _finding(
                    mirror,
                    name,
                    f"the host tensor is tagged {view.layout}, and its strides say {_words(fits, order)}",
                    expected=view.layout,
                    got=_words(fits, order),
                    time_ns=time_ns,
                    rank=rank,
                )
            )
    return findings


def check_readings(
    mirror: MirrorViews, others: Iterable[MirrorViews], *, time_ns: int, rank: int = 0
) -> list[Finding]:
    """Check that ``others``, mirrors of the same pool, read its host memory in the same order."""
    findings = []
    for name, view in mirror.host.items():
        for other in others:
            twin = other.host.get(name) if other.pool == mirror.pool else None
            if twin is None or twin.bases[0] != view.bases[0] or _reads(twin) == _reads(view):
                continue
            before, now = (
                _words(readings(order), order)
                for order in (
                    axis_order(twin, page_indexed=other.page_indexed),
                    axis_order(view, page_indexed=mirror.page_indexed),
                )
            )
            findings.append(
                _finding(
                    mirror,
                    name,
                    f"one host tensor is read in two orders, {before} by one copy and {now} by another; "
                    "their byte counts agree",
                    expected=before,
                    got=now,
                    time_ns=time_ns,
                    rank=rank,
                )
            )
            break
    return findings


def _reads(view: View) -> tuple[object, ...]:
    """Return everything that determines where in the tensor each byte of a tile lies."""
    return view.bases, view.page_stride, view.runs


def _words(fits: tuple[str, ...], order: tuple[str, ...]) -> str:
    return " or ".join(fits) or f"no known layout ({', '.join(order)})"


def _finding(
    mirror: MirrorViews,
    component: str,
    words: str,
    *,
    expected: str,
    got: str,
    time_ns: int,
    rank: int,
) -> Finding:
    return Finding(
        time_ns=time_ns,
        rank=rank,
        cls=FaultClass.LAYOUT_ORDER,
        pool=mirror.pool,
        component=component,
        expected=expected,
        got=got,
        message=f"{mirror.pool}.{component}: {words}",
        advice="take strides from the tensor, and give every reader and writer the same layout tag",
        check=CHECK,
    )
