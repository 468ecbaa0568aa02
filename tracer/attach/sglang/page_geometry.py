"""Pools whose tensors hold a page per row: index-K, DeepSeek-V4, NVFP4 and unified pools."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from hicache_dbg.tracer.attach.sglang.envelopes import generations_of
from hicache_dbg.tracer.attach.sglang.geometry import (
    Geometry,
    Layers,
    layer_positions,
    used_layers,
)
from hicache_dbg.tracer.attach.sglang.pages import deepseek_v4_page, index_k_page
from hicache_dbg.tracer.attach.sglang.tensors import End, bytes_like, of_pages
from hicache_dbg.tracer.view import Run

__all__ = ["dsa", "envelopes", "nvfp4", "v4_pages", "v4_state"]


@dataclass(frozen=True, slots=True)
class _PageRows:
    """The layers of both ends, each ``[pages, bytes of a page in any shape]``.

    Args:
        component: the name of what the rows hold.
        device: the layers of the device end.
        host: the layers of the host end.
        slots: number of slots per page.
        runs: returns where the bytes of a slot lie in a page of so many bytes; None for equal
            slots, one after the other.
    """

    component: str
    device: Layers
    host: Layers
    slots: int = 1
    runs: Callable[[int], tuple[Run, ...] | None] = lambda _page_bytes: None


def dsa(pool: Any, name: str) -> Geometry:
    """Read index-K page rows: the keys of a page, then their scales."""
    buffers = list(
        getattr(pool, "packed_device_index_buffers", None)
        or pool.device_pool.index_k_with_scale_buffer
    )
    positions = layer_positions(pool, len(buffers))
    if len(buffers) != len(positions):  # this rank owns only some of the device's layers
        buffers = [buffers[layer] for layer in sorted(positions, key=positions.__getitem__)]
    slots = pool.page_size
    rows = _PageRows(
        "index_k",
        buffers,
        _host_layers(pool.index_k_with_scale_buffer, pool.layout),
        slots,
        lambda page_bytes: index_k_page(page_bytes, slots),
    )
    geometry = _geometry(name, pool.layout, rows, positions, pool.page_size)
    return used_layers(pool, geometry)


def v4_pages(pool: Any, name: str) -> Geometry:
    """Read DeepSeek-V4 page rows: compressed KV, sliding-window KV, or their index."""
    if "indexer" in name:
        slots = 64 if index_k_page(pool.item_bytes, 64) else 1
        runs = index_k_page(pool.item_bytes, slots)
    else:
        slots, runs = deepseek_v4_page(pool.item_bytes)
    rows = _PageRows(
        "page",
        pool.device_buffers,
        _host_layers(pool.kv_buffer, pool.layout),
        slots,
        lambda page_bytes: runs if page_bytes == pool.item_bytes else None,
    )
    positions = layer_positions(pool, pool.layer_num)
    geometry = _geometry(name, pool.layout, rows, positions, pool.slot_page_size)
    return replace(geometry, index_unit="slot" if slots == pool.slot_page_size else "token")


def v4_state(pool: Any, name: str) -> Geometry:
    """Read DeepSeek-V4 compressor states: the ring of one sliding-window page is a page."""
    host = _host_layers(pool.kv_buffer, pool.layout)
    rows = _PageRows("state", pool.device_page_views, host, pool.ring_size)
    positions = layer_positions(pool, pool.layer_num)
    return _geometry(name, pool.layout, rows, positions, pool.swa_page_size)


def nvfp4(pool: Any, name: str) -> Geometry:
    """Read MiniMax NVFP4: a page is one row of packed bytes, and its methods take page ids."""
    rows = _PageRows("page", pool.device_rows, _host_layers(pool.kv_buffer, pool.layout))
    positions = layer_positions(pool, pool.layer_num)
    geometry = _geometry(name, pool.layout, rows, positions, slot_page=1)
    return replace(geometry, index_unit="page", tokens_per_page=pool.page_size)


def envelopes(pool: Any, name: str) -> Geometry:
    """Read unified pools: a page of all layers is one row of bytes; copies name physical pages."""
    device, host = pool._device_page_buffer, pool._host_page_buffer_view  # noqa: SLF001
    rows = _PageRows("envelope", [device], [host])
    geometry = _geometry(name, pool.layout, rows, {0: 0}, pool.page_size)
    return replace(geometry, generations=generations_of(pool))


def _geometry(
    name: str, layout: str, rows: _PageRows, positions: dict[int, int], slot_page: int
) -> Geometry:
    """Return the geometry of page rows; ``slot_page`` is the number of indices per page."""
    device, host = (
        of_pages(end, layers, rows.slots, rows.runs(layers[0][0].nbytes))
        for end, layers in (
            (End(name, rows.component, "device"), rows.device),
            (End(name, rows.component, "host", layout), rows.host),
        )
    )
    return Geometry(
        device={rows.component: device},
        host={rows.component: bytes_like(host, device)},
        positions=positions,
        slot_page=slot_page,
        page_indexed=True,
    )


def _host_layers(buffer: Any, layout: str) -> list[torch.Tensor]:
    """Return the layers of a host buffer: a list of layers, or a tensor with a layer axis."""
    if isinstance(buffer, (list, tuple)):
        return list(buffer)
    return list(buffer.unbind(0 if layout == "layer_first" else 1))
