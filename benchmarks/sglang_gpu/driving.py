# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""Running operations as this version of SGLang does, through its controller or its engine."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from setups import DEVICE, ENGINE, NUMBER, Setup

__all__ = ["Mover", "controller", "indices", "operation"]

_LAYER_COUNT = "transfer_layer_id_max" if NUMBER >= (0, 5, 21) else "layer_num"


def indices(pages: torch.Tensor, page: int) -> torch.Tensor:
    """Return all indices of whole pages, in the pages' order."""
    return (pages.view(-1, 1) * page + torch.arange(page, device=pages.device)).reshape(-1)


class Mover:
    """Moves one pool's pages; indices come as the tree holds them, the host's on the CPU, the device's on the GPU.

    Both directions return the event that SGLang takes for the operation's end. ``stream`` is where
    loads are enqueued.
    """

    def __init__(self, setup: Setup, io_backend: str) -> None:
        self._setup, self._backend = setup, io_backend
        self._make = _Engine if ENGINE else _Controller
        self._runs = self._make(setup, io_backend)
        self.stream: torch.cuda.Stream = self._runs.load_stream

    def backup(self, host: torch.Tensor, device: torch.Tensor) -> Any:
        """Enqueue a copy from device to host."""
        return self._runs.backup(host, device)

    def load(
        self, host: torch.Tensor, device: torch.Tensor, done: Callable[[int], None] | None = None
    ) -> Any:
        """Enqueue a copy from host to device; ``done`` is called behind each layer."""
        return self._runs.load(host, device, done)


class _Engine:
    def __init__(self, setup: Setup, io_backend: str) -> None:
        from sglang.srt.mem_cache.l2_transfer import L2TransferEngine

        self._setup, self._backend = setup, io_backend
        self._engine = L2TransferEngine(io_backend)
        self.load_stream = self._engine.host_to_device_stream

    def backup(self, host: torch.Tensor, device: torch.Tensor) -> Any:
        pool = self._setup.pool
        staged = pool.layout == "page_first" and getattr(pool, "can_use_write_back_jit", False)
        ends = (host, device) if staged and self._backend == "kernel" else self._moved(host, device)
        return self._engine.submit_device_to_host([self._transfer(*ends)]).finish_event

    def load(
        self, host: torch.Tensor, device: torch.Tensor, done: Callable[[int], None] | None
    ) -> Any:
        transfer = self._transfer(*self._moved(host, device))
        count = {_LAYER_COUNT: self._setup.layers}
        submit = self._engine.submit_host_to_device
        return submit([transfer], **count, on_layer_done=done).finish_event

    def _transfer(self, host: torch.Tensor, device: torch.Tensor) -> Any:
        from sglang.srt.mem_cache.l2_transfer import L2Transfer

        return L2Transfer(self._setup.pool, self._setup.pool_device, host, device)

    def _moved(self, host: torch.Tensor, device: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Move indices as ``HiCacheController.move_indices`` does."""
        if self._backend == "kernel":
            return host.to(DEVICE, non_blocking=True), device
        device = device.cpu()
        if self._setup.pool.layout != "layer_first":
            return host, device
        host, order = host.sort()
        return host, device.index_select(0, order)


class _Controller:
    def __init__(self, setup: Setup, io_backend: str) -> None:
        self._controller = controller(setup, io_backend)
        self.load_stream = self._controller.load_stream

    def backup(self, host: torch.Tensor, device: torch.Tensor) -> Any:
        self._controller.write_queue.append(operation(host, device))
        self._controller.start_writing()
        return self._controller.ack_write_queue.pop().finish_event

    def load(
        self, host: torch.Tensor, device: torch.Tensor, done: Callable[[int], None] | None
    ) -> Any:
        counter = self._controller.layer_done_counter
        events = counter.events[(counter.producer_index + 1) % counter.num_counters]
        events.finish_event.synchronize()  # the set is reused; the scheduler waits here as well
        if done is not None:
            events.complete = done
        self._controller.load_queue.append(operation(host, device))
        self._controller.start_loading()
        return self._controller.ack_load_queue.pop().finish_event


def controller(setup: Setup, io_backend: str) -> Any:
    """Build SGLang's controller over one pool, without its storage."""
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


def operation(host: torch.Tensor, device: torch.Tensor) -> Any:
    """Build an entry of the controller's queues."""
    from sglang.srt.managers.cache_controller import CacheOperation

    return CacheOperation(host, device, node_id=1)
