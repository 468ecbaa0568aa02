"""Pools that store a row per token: K and V, latents, and the scales beside them."""

from collections.abc import Mapping
from typing import Any

import torch

from hicache_dbg.tracer.attach.sglang.geometry import (
    Geometry,
    Layers,
    layer_positions,
    used_layers,
)
from hicache_dbg.tracer.attach.sglang.tensors import (
    End,
    bytes_like,
    layer_slices,
    of_pages,
    of_rows,
)
from hicache_dbg.tracer.view import View

__all__ = ["mha", "mha_k_only", "mha_mxfp8", "mla"]


def mha(pool: Any, name: str) -> Geometry:
    """Read K and V rows of one token each.

    The host keeps them in one tensor, or in two of different widths.
    """
    device_k = _device_layers(pool, "device_k_buffers", "k_buffer")
    device_v = _device_layers(pool, "device_v_buffers", "v_buffer")
    ends = {"k": (device_k, pool.kv_buffer[0]), "v": (device_v, pool.kv_buffer[1])}
    return _rows(pool, name, ends, layer_positions(pool, len(device_k)))


def mha_mxfp8(pool: Any, name: str) -> Geometry:
    """Read as :func:`mha`, plus the scales of K and V, which are contiguous per page."""
    geometry = mha(pool, name)
    for part in ("k", "v"):
        scale = f"{part}_scale"
        geometry.device[scale], geometry.host[scale] = _scales(pool, name, part)
    return geometry


def _scales(pool: Any, name: str, part: str) -> tuple[View, View]:
    device, host = (
        of_pages(End(name, f"{part}_scale", tier, layout), layers, 1)
        for tier, layout, layers in (
            ("device", "layer_first", getattr(pool, f"{part}_scale_device_rows")),
            ("host", pool.layout, getattr(pool, f"{part}_scale_host_layers")),
        )
    )
    return device, bytes_like(host, device)


def mha_k_only(pool: Any, name: str) -> Geometry:
    """Read index-K rows of a model whose index has no V."""
    layers = pool.device_pool.k_buffer
    ends = {"k": (layers, pool.k_buffer)}
    return _rows(pool, name, ends, layer_positions(pool, len(layers)))


def mla(pool: Any, name: str) -> Geometry:
    """Read latent rows; indices may be distributed over context-parallel ranks."""
    buffers = _device_layers(pool, "device_kv_buffers", "kv_buffer")
    positions = layer_positions(pool, len(buffers))
    buffer_of = getattr(pool, "_buffer_index_by_layer", None) or {
        layer: layer for layer in positions
    }
    copied = [buffers[buffer_of[layer]] for layer in sorted(positions, key=positions.__getitem__)]
    shard = (getattr(pool, "dcp_size", 1), getattr(pool, "dcp_rank", 0))
    ends = {"latent": (copied, pool.kv_buffer)}
    return used_layers(pool, _rows(pool, name, ends, positions, shard=shard))


def _rows(
    pool: Any,
    name: str,
    ends: Mapping[str, tuple[Layers, torch.Tensor]],
    positions: dict[int, int],
    *,
    shard: tuple[int, int] = (1, 0),
) -> Geometry:
    """Return the geometry of ``ends``: for each component, the device's layers and the host buffer."""
    device, host = {}, {}
    page, layout = pool.page_size, pool.layout
    paged = layout not in {"layer_first", "page_first"}
    for component, (layers, buffer) in ends.items():
        device[component] = of_rows(End(name, component, "device"), layers, page)
        slices = layer_slices(buffer, layout)
        host[component] = of_rows(End(name, component, "host", layout), slices, page, paged=paged)
    return Geometry(device, host, positions, page * shard[0], shard=shard)


def _device_layers(pool: Any, copied: str, own: str) -> list[torch.Tensor]:
    """Return the device tensors that a host pool copies.

    They are its attribute ``copied`` if this version has it, or else ``own`` of its device pools,
    with the layers of draft models behind the target's.
    """
    layers = getattr(pool, copied, None)
    if layers is not None:
        return list(layers)
    drafts = getattr(pool, "mtp_draft_device_pools", ())
    return [layer for device in (pool.device_pool, *drafts) for layer in getattr(device, own)]
