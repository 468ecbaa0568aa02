# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""Drive operations on a CPU as this version of SGLang does."""

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from released_base import ENGINE, LAYERS, NUMBER, Setup

__all__ = ["LAYER_COUNT", "backup", "controller", "indices", "load", "operation"]

#: What the engine's load calls the number of layers.
LAYER_COUNT = "transfer_layer_id_max" if NUMBER >= (0, 5, 21) else "layer_num"


def indices(pages: Sequence[int], page: int) -> torch.Tensor:
    """Return all indices of whole pages."""
    return torch.cat([torch.arange(p * page, (p + 1) * page) for p in pages])


def backup(setup: Setup, host: torch.Tensor, device: torch.Tensor, io_backend: str) -> None:
    """Back one pool up."""
    if ENGINE:
        engine, transfer = _engine(setup, host, device, io_backend)
        engine.submit_device_to_host([transfer])
        return
    owner = controller(setup, io_backend)
    owner.write_queue.append(operation(host, device))
    owner.start_writing()


def load(
    setup: Setup,
    host: torch.Tensor,
    device: torch.Tensor,
    io_backend: str,
    on_layer_done: Callable[[int], None] = lambda _: None,
) -> None:
    """Load one pool, layer by layer."""
    if ENGINE:
        engine, transfer = _engine(setup, host, device, io_backend)
        engine.submit_host_to_device(
            [transfer], **{LAYER_COUNT: LAYERS}, on_layer_done=on_layer_done
        )
        return
    owner = controller(setup, io_backend)
    owner.load_queue.append(operation(host, device))
    for event in owner.layer_done_counter.events:
        event.complete = on_layer_done
    owner.start_loading()


def _engine(
    setup: Setup, host: torch.Tensor, device: torch.Tensor, io_backend: str
) -> tuple[Any, Any]:
    from sglang.srt.mem_cache.l2_transfer import L2Transfer, L2TransferEngine

    return L2TransferEngine(io_backend), L2Transfer(setup.pool, setup.pool_device, host, device)


def operation(host: torch.Tensor, device: torch.Tensor) -> Any:
    """Return an entry of a controller's queues."""
    from sglang.srt.managers.cache_controller import CacheOperation

    return CacheOperation(host, device, node_id=1)


def controller(setup: Setup, io_backend: str) -> Any:
    """Return the real controller over a pool, without storage."""
    from sglang.srt.managers.cache_controller import HiCacheController

    allocator = SimpleNamespace(
        get_kvcache=lambda: setup.pool_device,
        set_hicache_transfer_done_event=lambda *_: None,
    )
    return HiCacheController(
        *(allocator, setup.pool, setup.page, None, threading.Event()),
        write_policy="write_through",
        io_backend=io_backend,
    )
