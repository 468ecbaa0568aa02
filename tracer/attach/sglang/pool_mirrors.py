"""What the tracer knows of a host pool as a mirror: both ends, or that nobody can read them."""

from typing import Any

import torch

from hicache_dbg.tracer.attach.sglang.geometry import Geometry
from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.view import View

__all__ = ["mirror_views", "page_indices"]

#: The device of an end that nobody can read: its class has no view.
_UNREAD = "unread"


def page_indices(pool: Any) -> int:
    """Return how many of a pool's indices make up a page for its allocator."""
    return int(getattr(pool, "logical_page_size", 0) or getattr(pool, "page_size", 1))


def mirror_views(pool: Any, name: str, geometry: Geometry | None) -> MirrorViews:
    """Return the mirror of a host pool called ``name``; without a geometry its ends are unread."""
    device = getattr(pool, "device_pool", None)
    page = geometry.slot_page if geometry else page_indices(pool)
    return MirrorViews(
        pool=name,
        device=geometry.device if geometry else {"page": _unread(pool, name, "device")},
        host=geometry.host if geometry else {"page": _unread(pool, name, "host")},
        device_cls=type(device).__name__ if device is not None else "tensors",
        host_cls=type(pool).__name__,
        index_unit=geometry.index_unit if geometry else "token",
        slot_page=page,
        tokens_per_page=(geometry.tokens_per_page if geometry else 0) or page,
        page_indexed=bool(geometry and geometry.page_indexed),
        one_item=bool(geometry and geometry.page_indexed),
        pinned=_pinned(geometry),
    )


def _pinned(geometry: Geometry | None) -> bool | None:
    """Return whether all host tensors are pinned; None if there is no GPU that could tell."""
    if geometry is None or not torch.cuda.is_available():
        return None
    return all(layer.is_pinned() for view in geometry.host.values() for layer in _owned(view))


def _owned(view: View) -> tuple[torch.Tensor, ...]:
    return view.owner if isinstance(view.owner, tuple) else ()


def _unread(pool: Any, name: str, tier: str) -> View:
    """Return an end of an unknown class: the layers and pages that the pool names, no bytes."""
    return View(
        pool=name,
        component="page",
        tier=tier,
        layout=str(getattr(pool, "layout", "none")),
        dtype=str(getattr(pool, "dtype", "none")).removeprefix("torch."),
        itemsize=1,
        bases=(0,) * max(1, int(getattr(pool, "layer_num", 1))),
        page_stride=0,
        page_span=0,
        pages=max(1, int(getattr(pool, "page_num", 1))),
        slots_per_page=1,
        runs=(),
        device=_UNREAD,
    )
