# mypy: disable-error-code="import-not-found,attr-defined"
# pyright: reportMissingImports=false
"""Two ranks of SGLang over gloo: a layer that one of them has reaches the other by broadcast.

The tests play the scenes on a CPU (released_ranks.py), benchmarks/sglang_gpu/ranks.py on a GPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed

__all__ = ["LAYERS", "PAGE", "SCENES", "Stage", "has", "meet"]

LAYERS, PAGE = 5, 64


@dataclass(frozen=True)
class Stage:
    """Where scenes are played.

    Attributes:
        home: Has ``host_class`` and ``DESCRIBED`` for the SGLang on the path.
        device: Of the device pools, ``cpu`` or ``cuda``.
        pages: Of the device pools.
        widths: Elements of a latent row, and of its rotary part.
        controller: Returns SGLang's controller over a host pool and its device pool.
        operation: Returns what the controller queues, of host slots and device slots.
        leave: Called at the end, with a host pool and its device pool.
    """

    home: Any
    device: str
    pages: int
    widths: tuple[int, int]
    controller: Callable[[Any, Any], Any]
    operation: Callable[[torch.Tensor, torch.Tensor], Any]
    leave: Callable[[Any, Any], object] = lambda _pool, _device: None

    @property
    def row(self) -> int:
        """Elements of a row with its rotary part."""
        return sum(self.widths)

    def settle(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def slots(self, pages: Sequence[int]) -> torch.Tensor:
        """Return the slots of pages, in the pages' order, on the device."""
        return slots(pages).to(self.device)

    def latent_pool(self, cls: str, module: str, **given: Any) -> Any:
        """Return a device pool of SGLang's own with random bytes."""
        kind = getattr(import_module(f"sglang.srt.mem_cache.{module}"), cls)
        rank, rope = self.widths
        pool = kind(
            size=(self.pages - 1) * PAGE,
            page_size=PAGE,
            kv_lora_rank=rank,
            dtype=torch.bfloat16,
            qk_rope_head_dim=rope,
            layer_num=LAYERS,
            device=self.device,
            enable_memory_saver=False,
            **given,
        )
        for layer, buffer in enumerate(pool.kv_buffer):
            generator = torch.Generator(self.device).manual_seed(layer)
            buffer.view(torch.uint8).random_(0, 256, generator=generator)
        return pool

    def host_pool(self, device: Any) -> Any:
        """Return the host pool over a device pool, for the layers that this rank has."""
        cls = self.home.host_class("MLATokenToKVPoolHost", "mla")
        pinned = {} if self.device == "cuda" else {"pin_memory": False}
        if not self.home.DESCRIBED:
            return cls(device, 2.0, 0, PAGE, "layer_first", **pinned)
        sharded = bool(getattr(device, "layer_shard_enabled", False))
        return cls(
            device._mla_buffer_info(),
            *(2.0, 0, PAGE, "layer_first"),
            device_capacity_tokens=device.size,
            start_layer=0,
            end_layer=LAYERS,
            target_layer_num=-(-LAYERS // 2) if sharded else LAYERS,
            layer_shard_enabled=sharded,
            **pinned,
        )


def slots(pages: Sequence[int]) -> torch.Tensor:
    """Return the slots of pages, in the pages' order."""
    return (torch.tensor(pages).view(-1, 1) * PAGE + torch.arange(PAGE)).reshape(-1)


def deduplicated(stage: Stage, rank: int) -> None:
    """Load on the first rank and broadcast each layer; both ranks write it to pages of their own."""
    from sglang.srt.mem_cache import mla_host_dedup

    mla_host_dedup.mla_dedup_rank_and_size = lambda: (rank, 2)
    device = stage.latent_pool("MLATokenToKVPool", "memory_pool")
    pages = stage.slots([(2, 3), (4, 1)][rank])
    broadcaster = mla_host_dedup.MLAHostDedupBroadcaster(device, distributed.group.WORLD, 0)
    # Tracing starts when this is built, also on the rank that keeps no host bytes.
    pool = stage.host_pool(device)
    host = stage.slots([5, 0])
    if rank == 0:
        pool.backup_from_device_all_layer(device, host, stage.slots([1, 4]), "kernel")
    stream = torch.cuda.current_stream() if stage.device == "cuda" else None
    prepared = broadcaster.prepare_broadcast(pages, stream)
    for layer in range(LAYERS):
        if rank == 0:
            pool.load_to_device_per_layer(device, host, pages, layer, "kernel")
        broadcaster.broadcast_loaded_layer(layer, prepared)
    stage.settle()
    stage.leave(pool, device)


def shared_out(stage: Stage, rank: int) -> None:
    """Load on each rank the layers it owns; reading a layer broadcasts it from its owner."""
    place = SimpleNamespace(world_size=2, pynccl_comm=None, cpu_group=distributed.group.WORLD)
    parallel = SimpleNamespace(attn_cp_group=place, attn_dcp_size=1, attn_dcp_rank=0)
    for module in ("memory_pool", "dsa_cache_layer_split"):
        home: Any = import_module(f"sglang.srt.mem_cache.{module}")
        home.get_parallel = lambda: parallel
    device = stage.latent_pool(
        "LayerSplitDSATokenToKVPool",
        "dsa_cache_layer_split",
        index_head_dim=128,
        kv_cache_dim=stage.row,
        layer_shard_rank=rank,
        layer_shard_size=2,
    )
    pool = stage.host_pool(device)
    owner, host = stage.controller(pool, device), slots([5, 0])
    owner.write_queue.append(stage.operation(host, stage.slots([1, 4])))
    owner.start_writing()
    stage.settle()
    owner.load_queue.append(stage.operation(host, stage.slots([2, 3])))
    owner.start_loading()
    stage.settle()
    for read in (device.get_key_buffer, device._get_broadcastable_index_buffer):
        for layer in range(LAYERS):
            read(layer)
    stage.settle()
    stage.leave(pool, device)


Scene = Callable[[Stage, int], None]


def damaged(scene: Scene) -> Scene:
    """Return a scene in which a byte of the second layer changes on its way to the second rank."""

    def played(stage: Stage, rank: int) -> None:
        broadcast, calls = distributed.broadcast, [0]
        page_bytes = PAGE * stage.row * torch.bfloat16.itemsize

        def changing(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            result = broadcast(tensor, *args, **kwargs)
            calls[0] += 1
            if rank == 1 and calls[0] == 2:
                rows = tensor.view(torch.uint8).reshape(-1)
                at = (
                    2 * page_bytes if len(rows) > 3 * page_bytes else 0
                )  # of a page that was loaded
                rows[at] ^= 0xFF
            return result

        distributed.broadcast = changing
        try:
            scene(stage, rank)
        finally:
            distributed.broadcast = broadcast

    return played


SCENES: dict[str, Scene] = {
    "deduplicated": deduplicated,
    "deduplicated_damaged": damaged(deduplicated),
    "shared_out": shared_out,
    "shared_out_damaged": damaged(shared_out),
}


def has(scene: str, version: tuple[int, ...]) -> bool:
    """Return whether a version of SGLang supports a scene."""
    return ((0, 5, 20) if scene.startswith("dedup") else (0, 5, 17)) <= version


def meet(rank: int, store: str, limit: timedelta) -> None:
    """Meet the other rank at ``store``, a file."""
    distributed.init_process_group(
        "gloo",
        store=distributed.FileStore(store, 2),  # pyright: ignore[reportPrivateImportUsage]
        rank=rank,
        world_size=2,
        timeout=limit,
    )
