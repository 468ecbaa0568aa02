"""What is read off a host pool: both ends as views, and how their layers and pages are numbered."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hicache_dbg.tracer.ledger import Pages
from hicache_dbg.tracer.view import View

__all__ = ["Geometry", "Layers", "layer_positions", "used_layers"]

#: One tensor per layer.
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
        generations: returns the generations of host pages if the pool's copies name them
            differently from its allocator; None if both agree.
    """

    device: dict[str, View]
    host: dict[str, View]
    positions: dict[int, int]
    slot_page: int
    index_unit: str = "token"
    page_indexed: bool = False
    tokens_per_page: int = 0
    shard: tuple[int, int] = field(default=(1, 0))
    generations: Callable[[Pages], Pages] | None = None


def layer_positions(pool: Any, layers: int) -> dict[int, int]:
    """Map the layer numbers that the pool's methods take to its ``layers`` layers in the views."""
    known = getattr(pool, "_host_layer_by_controller", None)
    if known is None and hasattr(pool, "_device_to_host_layer"):
        drafts = {
            pool.device_pool.layer_num + i: pool.target_layer_num + i
            for i in range(layers - pool.target_layer_num)
        }
        known = pool._device_to_host_layer | drafts  # noqa: SLF001 - the pool's own map
    if known is not None:
        return dict(known)
    device: Any = getattr(pool, "device_pool", None)
    if getattr(device, "layer_shard_enabled", False):
        owned = pool._owned_device_layer_ids(device)  # noqa: SLF001
        return {layer: position for position, layer in enumerate(owned)}
    # HiSparse numbers MHA layers as the model does, every other caller as the pool does.
    start = pool.start_layer if type(pool).__name__.startswith("HiSparseMHA") else 0
    return {start + layer: layer for layer in range(layers)}


def used_layers(pool: Any, geometry: Geometry) -> Geometry:
    """Restrict the host end to the layers that this rank uses, if ranks divide the layers.

    All ranks allocate the same number of layers; one that owns fewer uses the first ones.
    """
    device = getattr(pool, "device_pool", None)
    divided = getattr(pool, "_layer_shard_enabled", getattr(device, "layer_shard_enabled", False))
    if not divided:
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
    new_position = {old: new for new, old in enumerate(used)}
    positions = {layer: new_position[old] for layer, old in geometry.positions.items()}
    return replace(geometry, host=host, positions=positions)
