"""Views read off SGLang's tensors: one tensor a layer, whatever the layout that holds it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from hicache_dbg.tracer.view import Run, View

__all__ = ["End", "bytes_like", "layer_slices", "of_pages", "of_rows", "row_parts"]

#: The axis of a host buffer's layers, by layout; K and V of a common tensor are split before.
LAYER_AXIS = {"layer_first": 0, "page_first": 1, "page_first_direct": 1, "page_head": 3}


@dataclass(frozen=True, slots=True)
class End:
    """What a view says of the tensors' place: pool, component, tier, layout."""

    pool: str
    component: str
    tier: str
    layout: str


def layer_slices(buffer: torch.Tensor, layout: str) -> list[torch.Tensor]:
    """The layers of a host buffer: each [slots, ...] or, where pages are an axis, [pages, slots, ...]."""
    layers = list(buffer.unbind(LAYER_AXIS[layout]))
    if layout == "page_head":  # [pages, heads, slots, dim]
        return [layer.transpose(1, 2) for layer in layers]
    return layers


def row_parts(rows: torch.Tensor, count: int) -> list[torch.Tensor]:
    """The rows of [slots, ...] in ``count`` equal parts each, [slots, part]; together they are all of it.

    The last parts overlap where a row does not divide.

    Raises:
        RuntimeError: a row is not in one piece.
    """
    flat = rows.view(len(rows), -1)
    width = flat.shape[1]
    part = -(-width // count)
    begins = (min(at * part, width - part) for at in range(count))
    return [flat[:, begin : begin + part] for begin in begins]


def of_rows(end: End, layers: Sequence[torch.Tensor], page: int, *, paged: bool = False) -> View:
    """Tensors whose slots are an axis: [slots, ...], or with ``paged`` [pages, slots, ...].

    A slot has one row of bytes, or one for each head where the heads do not lie side by side.
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
    run = Run(0, slot_stride, row_bytes, rows, row_stride)
    return View(
        pool=end.pool,
        component=end.component,
        tier=end.tier,
        layout=end.layout,
        dtype=_dtype(first),
        itemsize=size,
        bases=tuple(layer.data_ptr() for layer in layers),
        page_stride=page_stride,
        page_span=page * rows * row_bytes,
        pages=pages,
        slots_per_page=page,
        runs=(run,),
        device=str(first.device),
        owner=tuple(layers),
    )


def _inner_rows(shape: list[int], strides: list[int], size: int) -> tuple[int, int, int]:
    """Rows of a slot, the distance between them, and bytes of a row.

    Raises:
        ValueError: the slot's bytes are neither in one piece nor in equal rows.
    """
    row_bytes = size
    axis = len(shape)
    while axis and (shape[axis - 1] == 1 or strides[axis - 1] == row_bytes):
        row_bytes *= shape[axis - 1]
        axis -= 1
    left = [at for at in range(axis) if shape[at] > 1]
    if not left:
        return 1, 0, row_bytes
    if len(left) > 1:
        raise ValueError(
            f"a slot of shape {shape} with strides {strides} (bytes) is no set of equal rows"
        )
    return shape[left[0]], strides[left[0]], row_bytes


def of_pages(
    end: End, layers: Sequence[torch.Tensor], slots: int, runs: tuple[Run, ...] | None = None
) -> View:
    """Tensors whose rows are whole pages: [pages, bytes of a page in any shape].

    ``runs`` says where a slot's bytes are in a page; without it a page is ``slots`` equal slots.

    Raises:
        ValueError: a page's bytes are not in one piece, or not ``slots`` equal parts.
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
    return View(
        pool=end.pool,
        component=end.component,
        tier=end.tier,
        layout=end.layout,
        dtype=_dtype(first),
        itemsize=size,
        bases=tuple(layer.data_ptr() for layer in layers),
        page_stride=first.stride(0) * size,
        page_span=span,
        pages=first.shape[0],
        slots_per_page=slots,
        runs=runs or (Run(0, span // slots, span // slots),),
        device=str(first.device),
        owner=tuple(layers),
    )


def bytes_like(host: View, device: View) -> View:
    """A host view of plain bytes, called what the device calls them where the widths agree.

    Pools of raw page rows keep bytes and know no dtype: uint8 there is no disagreement.
    """
    if host.dtype != "uint8" or host.page_span != device.page_span:
        return host
    return replace(host, dtype=device.dtype, itemsize=device.itemsize)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
