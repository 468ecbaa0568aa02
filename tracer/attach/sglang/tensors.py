"""Views read off SGLang's tensors: one tensor per layer, whatever layout holds it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from hicache_dbg.tracer.view import Run, View

__all__ = ["End", "bytes_like", "layer_slices", "of_pages", "of_rows", "row_parts"]

#: The layer axis of a host buffer, by layout, after a common tensor was split into K and V.
LAYER_AXIS = {"layer_first": 0, "page_first": 1, "page_first_direct": 1, "page_head": 3}


@dataclass(frozen=True, slots=True)
class End:
    """The place of a view's tensors: pool, component, tier, layout."""

    pool: str
    component: str
    tier: str
    layout: str = "layer_first"


def layer_slices(buffer: torch.Tensor, layout: str) -> list[torch.Tensor]:
    """Return the layers of a host buffer: each ``[slots, ...]`` or ``[pages, slots, ...]``."""
    layers = list(buffer.unbind(LAYER_AXIS[layout]))
    if layout == "page_head":  # [pages, heads, slots, dim]
        return [layer.transpose(1, 2) for layer in layers]
    return layers


def row_parts(rows: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Divide the rows of ``[slots, ...]`` into ``count`` equal parts, each ``[slots, part]``.

    Together the parts cover the whole row; the last ones overlap if it does not divide evenly.

    Raises:
        RuntimeError: a row is not contiguous.
    """
    flat = rows.view(len(rows), -1)
    width = flat.shape[1]
    part = -(-width // count)
    begins = (min(at * part, width - part) for at in range(count))
    return [flat[:, begin : begin + part] for begin in begins]


def of_rows(end: End, layers: Sequence[torch.Tensor], page: int, *, paged: bool = False) -> View:
    """View tensors with a slot axis: ``[slots, ...]``, or ``[pages, slots, ...]`` with ``paged``.

    A slot has one row of bytes, or one per head if the heads are not contiguous.
    """
    first = layers[0]
    size = first.element_size()
    strides = [stride * size for stride in first.stride()]
    if paged:
        pages, page_stride, slot_stride = first.shape[0], strides[0], strides[1]
        inner = 2
    else:
        pages, page_stride, slot_stride = first.shape[0] // page, strides[0] * page, strides[0]
        inner = 1
    rows, row_stride, row_bytes = _inner_rows(list(first.shape[inner:]), strides[inner:], size)
    return _view(
        end,
        layers,
        pages=pages,
        page_stride=page_stride,
        page_span=page * rows * row_bytes,
        slots_per_page=page,
        runs=(Run(0, slot_stride, row_bytes, rows, row_stride),),
    )


def _view(end: End, layers: Sequence[torch.Tensor], **shape: Any) -> View:
    """Return a view of ``layers``; ``shape`` says how many pages they have and where those lie."""
    first = layers[0]
    return View(
        pool=end.pool,
        component=end.component,
        tier=end.tier,
        layout=end.layout,
        dtype=str(first.dtype).removeprefix("torch."),
        itemsize=first.element_size(),
        bases=tuple(layer.data_ptr() for layer in layers),
        device=str(first.device),
        owner=tuple(layers),
        **shape,
    )


def _inner_rows(shape: list[int], strides: list[int], size: int) -> tuple[int, int, int]:
    """Return the rows of a slot, the distance between them, and the bytes of a row.

    Raises:
        ValueError: the slot's bytes are neither contiguous nor equal rows.
    """
    row_bytes = size
    axis = len(shape)
    while axis and (shape[axis - 1] == 1 or strides[axis - 1] == row_bytes):
        row_bytes *= shape[axis - 1]
        axis -= 1
    outer = [at for at in range(axis) if shape[at] > 1]
    if not outer:
        return 1, 0, row_bytes
    if len(outer) > 1:
        raise ValueError(
            f"a slot of shape {shape} with strides {strides} (bytes) is not a set of equal rows"
        )
    return shape[outer[0]], strides[outer[0]], row_bytes


def of_pages(
    end: End, layers: Sequence[torch.Tensor], slots: int, runs: tuple[Run, ...] | None = None
) -> View:
    """View tensors whose rows are whole pages: ``[pages, bytes of a page in any shape]``.

    ``runs`` says where a slot's bytes lie in a page; without it a page is ``slots`` equal slots.

    Raises:
        ValueError: a page's bytes are not contiguous, or not ``slots`` equal parts.
    """
    first = layers[0]
    size = first.element_size()
    rows, _, span = _inner_rows(
        list(first.shape[1:]), [stride * size for stride in first.stride()[1:]], size
    )
    if rows != 1 or (runs is None and span % slots):
        raise ValueError(
            f"{end.pool}.{end.component}: a {end.tier} page of shape {tuple(first.shape[1:])} is not {slots} "
            f"equal slots in one piece"
        )
    return _view(
        end,
        layers,
        pages=first.shape[0],
        page_stride=first.stride(0) * size,
        page_span=span,
        slots_per_page=slots,
        runs=runs or (Run(0, span // slots, span // slots),),
    )


def bytes_like(host: View, device: View) -> View:
    """Return a host view of plain bytes with the device's dtype, if the widths agree.

    Pools of raw page rows store bytes and know no dtype, so uint8 there is not a disagreement.
    """
    if host.dtype != "uint8" or host.page_span != device.page_span:
        return host
    return replace(host, dtype=device.dtype, itemsize=device.itemsize)
