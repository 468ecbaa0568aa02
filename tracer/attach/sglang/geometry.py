"""Both ends of each host pool class, read off the tensors that the pool itself uses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hicache_dbg.tracer.attach.sglang.envelopes import lives
from hicache_dbg.tracer.attach.sglang.pages import deepseek_v4_page, index_k_page
from hicache_dbg.tracer.attach.sglang.tensors import (
    End,
    bytes_like,
    layer_slices,
    of_pages,
    of_rows,
    row_parts,
)
from hicache_dbg.tracer.ledger import Pages
from hicache_dbg.tracer.view import Run, View

__all__ = [
    "Geometry",
    "dsa",
    "envelopes",
    "mamba",
    "mha",
    "mha_k_only",
    "mha_mxfp8",
    "mla",
    "page_rows",
    "v4_pages",
    "v4_state",
]

Layers = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Geometry:
    """What was read off a host pool.

    Args:
        device: views of the device end, by component.
        host: views of the host end, by component.
        positions: maps layer numbers of the pool's methods to layers of the views.
        slot_page: number of indices per page.
        index_unit: what an index counts.
        page_indexed: whether dimension 0 of the device tensor counts pages.
        tokens_per_page: tokens per page; 0 means ``slot_page``.
        shard: (number of ranks, own rank) over which indices are distributed round-robin.
        lives: reads generations of host pages if the pool's copies name them differently from its
            allocator; None if both agree.
    """

    device: dict[str, View]
    host: dict[str, View]
    positions: dict[int, int]
    slot_page: int
    index_unit: str = "token"
    page_indexed: bool = False
    tokens_per_page: int = 0
    shard: tuple[int, int] = field(default=(1, 0))
    lives: Callable[[Pages], Pages] | None = None


def mha(pool: Any, name: str) -> Geometry:
    """Read K and V rows of one token each.

    The host keeps them in one tensor, or in two of own widths.
    """
    device_k = _device_layers(pool, "device_k_buffers", "k_buffer")
    device_v = _device_layers(pool, "device_v_buffers", "v_buffer")
    page, layout = pool.page_size, pool.layout
    ends = {"k": (device_k, pool.kv_buffer[0]), "v": (device_v, pool.kv_buffer[1])}
    return _rows(name, ends, page, layout, _positions(pool, len(device_k)))


def mha_mxfp8(pool: Any, name: str) -> Geometry:
    """Read as :func:`mha`, plus the scales, contiguous per page, beside K and V."""
    geometry = mha(pool, name)
    for part in ("k", "v"):
        scales = _scales(pool, name, part)
        geometry.device[f"{part}_scale"], geometry.host[f"{part}_scale"] = scales
    return geometry


def _scales(pool: Any, name: str, part: str) -> tuple[View, View]:
    device, host = (
        of_pages(_end(name, f"{part}_scale", tier, layout), layers, 1)
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
    return _rows(name, ends, pool.page_size, pool.layout, _positions(pool, len(layers)))


def mla(pool: Any, name: str) -> Geometry:
    """Read latent rows; indices may be distributed over context-parallel ranks."""
    buffers = _device_layers(pool, "device_kv_buffers", "kv_buffer")
    positions = _positions(pool, len(buffers))
    at = getattr(pool, "_buffer_index_by_layer", None) or {layer: layer for layer in positions}
    chosen = [buffers[at[layer]] for layer in sorted(positions, key=positions.__getitem__)]
    shard = (getattr(pool, "dcp_size", 1), getattr(pool, "dcp_rank", 0))
    ends = {"latent": (chosen, pool.kv_buffer)}
    geometry = _rows(name, ends, pool.page_size, pool.layout, positions, shard=shard)
    return _shared_out(pool, geometry)


def _shared_out(pool: Any, geometry: Geometry) -> Geometry:
    """Restrict a host pool to the layers this rank uses, if ranks divide the layers.

    All ranks allocate the same number of layers; one that owns fewer uses the first ones.
    """
    device = getattr(pool, "device_pool", None)
    shares = getattr(pool, "_layer_shard_enabled", getattr(device, "layer_shard_enabled", False))
    if not shares:
        return geometry
    used = sorted(geometry.positions.values())
    host = {
        component: replace(
            view,
            bases=tuple(view.bases[layer] for layer in used),
            owner=tuple(view.owner[layer] for layer in used),  # type: ignore[index]
        )
        for component, view in geometry.host.items()
    }
    order = {layer: at for at, layer in enumerate(used)}
    positions = {layer: order[at] for layer, at in geometry.positions.items()}
    return replace(geometry, host=host, positions=positions)


def mamba(pool: Any, name: str) -> Geometry:
    """Read state slots: one temporal and several convolution tensors; a slot is a page.

    Additional states registered by a model have no layers and move with the first layer. Each is
    divided among the layers, a part of its row per layer.
    """
    info = _first(pool, "buffer_info", "device_pool.mamba_cache")
    temporal = getattr(pool, "temporal_device_layers", None) or info.temporal.unbind(0)
    convolutions = getattr(pool, "conv_device_layers", None) or [c.unbind(0) for c in info.conv]
    ends = {f"conv{i}": (c, pool.conv_buffer[i]) for i, c in enumerate(convolutions)}
    if pool.temporal_buffer.numel():
        ends = {"temporal": (temporal, pool.temporal_buffer), **ends}
    axis = 0 if pool.layout == "layer_first" else 1
    device, host = {}, {}
    for component, (layers, buffer) in ends.items():
        device[component] = of_rows(_end(name, component, "device"), layers, 1)
        slots = buffer.unbind(axis)
        host[component] = of_rows(_end(name, component, "host", pool.layout), slots, 1)
    count = len(next(iter(ends.values()))[0])
    for views, tier, layout, states in (
        (device, "device", "layer_first", getattr(pool, "slot_state_device_tensors", ())),
        (host, "host", pool.layout, getattr(pool, "slot_state_buffers", ())),
    ):
        for number, state in enumerate(states):
            end = _end(name, f"state{number}", tier, layout)
            views[end.component] = of_rows(end, row_parts(state, count), 1)
    return Geometry(device, host, {layer: layer for layer in range(count)}, 1, "slot")


def dsa(pool: Any, name: str) -> Geometry:
    """Read index-K page rows: the keys of a page, then their scales."""
    buffers = list(
        getattr(pool, "packed_device_index_buffers", None)
        or pool.device_pool.index_k_with_scale_buffer
    )
    positions = _positions(pool, len(buffers))
    if len(buffers) != len(positions):  # this rank owns only some of the device's layers
        buffers = [buffers[layer] for layer in sorted(positions, key=positions.__getitem__)]
    slots, host = pool.page_size, pool.index_k_with_scale_buffer
    geometry = _page_rows(
        (name, "index_k", pool.layout),
        (buffers, _page_layers(host, pool.layout)),
        (slots, lambda item: index_k_page(item, slots)),
        positions,
        pool.page_size,
    )
    return _shared_out(pool, geometry)


def v4_pages(pool: Any, name: str) -> Geometry:
    """Read DeepSeek-V4 page rows: compressed KV, sliding-window KV, or their index."""
    if "indexer" in name:
        slots = next((s for s in (64,) if index_k_page(pool.item_bytes, s)), 1)
        runs = index_k_page(pool.item_bytes, slots)
    else:
        slots, runs = deepseek_v4_page(pool.item_bytes)
    return _page_rows(
        (name, "page", pool.layout),
        (pool.device_buffers, _page_layers(pool.kv_buffer, pool.layout)),
        (slots, lambda item: runs if item == pool.item_bytes else None),
        _positions(pool, pool.layer_num),
        pool.slot_page_size,
        unit="slot" if slots == pool.slot_page_size else "token",
    )


def v4_state(pool: Any, name: str) -> Geometry:
    """Read DeepSeek-V4 compressor states: the ring of one sliding-window page is a page."""
    return _page_rows(
        (name, "state", pool.layout),
        (pool.device_page_views, _page_layers(pool.kv_buffer, pool.layout)),
        (pool.ring_size, lambda _: None),
        _positions(pool, pool.layer_num),
        pool.swa_page_size,
    )


def page_rows(pool: Any, name: str) -> Geometry:
    """Read MiniMax NVFP4: a page is one row of packed bytes, and its methods take page ids."""
    geometry = _page_rows(
        (name, "page", pool.layout),
        (pool.device_rows, _page_layers(pool.kv_buffer, pool.layout)),
        (1, lambda _: None),
        _positions(pool, pool.layer_num),
        1,
        unit="page",
    )
    return replace(geometry, tokens_per_page=pool.page_size)


def envelopes(pool: Any, name: str) -> Geometry:
    """Read unified pools: a page of all layers is one row of bytes; copies name physical pages."""
    geometry = _page_rows(
        (name, "envelope", pool.layout),
        ([pool._device_page_buffer], [pool._host_page_buffer_view]),  # noqa: SLF001
        (1, lambda _: None),
        {0: 0},
        pool.page_size,
    )
    return replace(geometry, lives=lives(pool))


def _rows(
    name: str,
    ends: Mapping[str, tuple[Layers, torch.Tensor]],
    page: int,
    layout: str,
    positions: dict[int, int],
    *,
    shard: tuple[int, int] = (1, 0),
) -> Geometry:
    device, host = {}, {}
    paged = layout not in {"layer_first", "page_first"}
    for component, (layers, buffer) in ends.items():
        device[component] = of_rows(_end(name, component, "device"), layers, page)
        slices = layer_slices(buffer, layout)
        host[component] = of_rows(_end(name, component, "host", layout), slices, page, paged=paged)
    return Geometry(device, host, positions, page * shard[0], shard=shard)


def _page_rows(
    named: tuple[str, str, str],
    tensors: tuple[Layers, Layers],
    rows: tuple[int, Callable[[int], tuple[Run, ...] | None]],
    positions: dict[int, int],
    slot_page: int,
    *,
    unit: str = "token",
) -> Geometry:
    name, component, layout = named
    slots, runs_of = rows
    view = {}
    for end, layers in zip(
        (_end(name, component, "device"), _end(name, component, "host", layout)),
        tensors,
        strict=True,
    ):
        item = layers[0][0].numel() * layers[0].element_size()
        view[end.tier] = of_pages(end, layers, slots, runs_of(item))
    host = bytes_like(view["host"], view["device"])
    return Geometry(
        {component: view["device"]},
        {component: host},
        positions,
        slot_page,
        unit,
        page_indexed=True,
    )


def _page_layers(buffer: Any, layout: str) -> list[torch.Tensor]:
    """Return the layers of a host buffer of page rows: a list of layers, or a layer axis."""
    if isinstance(buffer, (list, tuple)):
        return list(buffer)
    return list(buffer.unbind(0 if layout == "layer_first" else 1))


def _positions(pool: Any, layers: int) -> dict[int, int]:
    """Map the layer numbers that the pool's methods take to the layers of the views."""
    told = getattr(pool, "_host_layer_by_controller", None)
    if told is None and hasattr(pool, "_device_to_host_layer"):
        drafts = {
            pool.device_pool.layer_num + i: pool.target_layer_num + i
            for i in range(layers - pool.target_layer_num)
        }
        told = pool._device_to_host_layer | drafts  # noqa: SLF001 - the pool's own map
    if told is not None:
        return dict(told)
    device: Any = getattr(pool, "device_pool", None)
    if getattr(device, "layer_shard_enabled", False):
        owned = pool._owned_device_layer_ids(device)  # noqa: SLF001
        return {layer: at for at, layer in enumerate(owned)}
    # HiSparse numbers MHA layers as the model does, every other caller as the pool does.
    start = pool.start_layer if type(pool).__name__.startswith("HiSparseMHA") else 0
    return {start + layer: layer for layer in range(layers)}


def _end(pool: str, component: str, tier: str, layout: str = "layer_first") -> End:
    return End(pool, component, tier, layout)


def _device_layers(pool: Any, held: str, own: str) -> list[torch.Tensor]:
    """Return the device tensors that a pool copies: its own ``held``, or its device pools' ``own``.

    Layers of draft models follow the target's.
    """
    layers = getattr(pool, held, None)
    if layers is not None:
        return list(layers)
    drafts = getattr(pool, "mtp_draft_device_pools", ())
    return [layer for device in (pool.device_pool, *drafts) for layer in getattr(device, own)]


def _first(pool: Any, *paths: str) -> Any:
    """Return the first of these attributes that this version's pool has."""
    for path in paths:
        value = pool
        for part in path.split("."):
            value = getattr(value, part, None)
        if value is not None:
            return value
    raise AttributeError(f"{type(pool).__name__} has none of {', '.join(paths)}")
