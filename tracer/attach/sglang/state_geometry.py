"""Pools of Mamba states: a slot holds the whole state of a sequence, and is a page."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from hicache_dbg.tracer.attach.sglang.geometry import Geometry, Layers
from hicache_dbg.tracer.attach.sglang.tensors import End, of_rows, row_parts
from hicache_dbg.tracer.view import View

__all__ = ["mamba"]


def mamba(pool: Any, name: str) -> Geometry:
    """Read state slots: one temporal and several convolution tensors, and a model's own states.

    The states that a model registers have no layers and move with the first layer. Each is divided
    among the layers, a part of its row per layer.
    """
    axis = 0 if pool.layout == "layer_first" else 1
    device, host, count = {}, {}, 0
    for component, layers, buffer in _tensors(pool):
        device[component] = of_rows(End(name, component, "device"), layers, 1)
        host[component] = of_rows(End(name, component, "host", pool.layout), buffer.unbind(axis), 1)
        count = len(layers)
    on_device = getattr(pool, "slot_state_device_tensors", ())
    on_host = getattr(pool, "slot_state_buffers", ())
    device |= _registered(name, "device", "layer_first", on_device, count)
    host |= _registered(name, "host", pool.layout, on_host, count)
    return Geometry(device, host, {layer: layer for layer in range(count)}, 1, "slot")


def _tensors(pool: Any) -> Iterator[tuple[str, Layers, torch.Tensor]]:
    """Yield each component with the device's layers and the host buffer."""
    info = getattr(pool, "buffer_info", None) or pool.device_pool.mamba_cache
    if pool.temporal_buffer.numel():
        temporal = getattr(pool, "temporal_device_layers", None) or info.temporal.unbind(0)
        yield "temporal", temporal, pool.temporal_buffer
    layers = getattr(pool, "conv_device_layers", None) or [conv.unbind(0) for conv in info.conv]
    for number, convolution in enumerate(layers):
        yield f"conv{number}", convolution, pool.conv_buffer[number]


def _registered(
    name: str, tier: str, layout: str, states: Sequence[torch.Tensor], count: int
) -> dict[str, View]:
    """Return views of the states that a model registered, each divided among ``count`` layers."""
    return {
        f"state{number}": of_rows(
            End(name, f"state{number}", tier, layout), row_parts(state, count), 1
        )
        for number, state in enumerate(states)
    }
