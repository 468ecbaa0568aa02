# mypy: disable-error-code="import-not-found,attr-defined"
# pyright: reportMissingImports=false
"""Play one of two ranks over gloo: python released_ranks.py RANK STORE FOLDER. Writes each scene's events.

Scenes: a latent pool whose bytes only the first rank keeps, a device pool whose layers are
distributed over the ranks, and each of them again with a byte that changes on the way to the second
rank.
"""

import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
from torch import distributed

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import released_base as base
    import released_driving
    from copy_stand_ins import install
    from released_driving import controller, indices, operation

from hicache_dbg.tracer.attach.sglang.start import trace
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.settings import Gate, Settings

LAYERS, PAGE, PAGES = 5, 64, 7
LIMIT = timedelta(seconds=60)


def latent_pool(cls: str, module: str, **given: Any) -> Any:
    """Return a device pool of SGLang's own with random bytes."""
    kind = getattr(import_module(f"sglang.srt.mem_cache.{module}"), cls)
    pool = kind(
        size=(PAGES - 1) * PAGE,
        page_size=PAGE,
        kv_lora_rank=16,
        dtype=torch.bfloat16,
        qk_rope_head_dim=8,
        layer_num=LAYERS,
        device="cpu",
        enable_memory_saver=False,
        **given,
    )
    for layer, buffer in enumerate(pool.kv_buffer):
        generator = torch.Generator().manual_seed(layer)
        buffer.view(torch.uint8).random_(0, 256, generator=generator)
    return pool


def host_pool(device: Any) -> Any:
    """Return the host pool over a device pool, for the layers that this rank has."""
    cls = base.host_class("MLATokenToKVPoolHost", "mla")
    if not base.DESCRIBED:
        return cls(device, 2.0, 0, PAGE, "layer_first", pin_memory=False)
    sharded = bool(getattr(device, "layer_shard_enabled", False))
    return cls(
        device._mla_buffer_info(),
        *(2.0, 0, PAGE, "layer_first"),
        pin_memory=False,
        device_capacity_tokens=device.size,
        start_layer=0,
        end_layer=LAYERS,
        target_layer_num=-(-LAYERS // 2) if sharded else LAYERS,
        layer_shard_enabled=sharded,
    )


def deduplicated(rank: int) -> None:
    """The first rank loads, and both get each layer, each into its own pages."""
    from sglang.srt.mem_cache import mla_host_dedup

    mla_host_dedup.mla_dedup_rank_and_size = lambda: (rank, 2)
    device = latent_pool("MLATokenToKVPool", "memory_pool")
    pages = indices([(2, 3), (4, 1)][rank], PAGE)
    broadcaster = mla_host_dedup.MLAHostDedupBroadcaster(device, distributed.group.WORLD, 0)
    pool = host_pool(device)  # tracing begins with it, on a rank that keeps no bytes with another
    host = indices([5, 0], PAGE)
    if rank == 0:
        pool.backup_from_device_all_layer(device, host, indices([1, 4], PAGE), "kernel")
    prepared = broadcaster.prepare_broadcast(pages, None)
    for layer in range(LAYERS):
        if rank == 0:
            pool.load_to_device_per_layer(device, host, pages, layer, "kernel")
        broadcaster.broadcast_loaded_layer(layer, prepared)


def shared_out(rank: int) -> None:
    """Each rank loads its layers, and a reader of any layer gets it from its owner."""
    place = SimpleNamespace(world_size=2, pynccl_comm=None, cpu_group=distributed.group.WORLD)
    parallel = SimpleNamespace(attn_cp_group=place, attn_dcp_size=1, attn_dcp_rank=0)
    for module in ("memory_pool", "dsa_cache_layer_split"):
        home: Any = import_module(f"sglang.srt.mem_cache.{module}")
        home.get_parallel = lambda: parallel
    device = latent_pool(
        "LayerSplitDSATokenToKVPool",
        "dsa_cache_layer_split",
        index_head_dim=128,
        kv_cache_dim=24,
        layer_shard_rank=rank,
        layer_shard_size=2,
    )
    released_driving.LAYERS = LAYERS
    pool = host_pool(device)
    owner = controller(base.Setup(pool, PAGE, device.kv_buffer, PAGE, device), "kernel")
    host = indices([5, 0], PAGE)
    owner.write_queue.append(operation(host, indices([1, 4], PAGE)))
    owner.start_writing()
    owner.load_queue.append(operation(host, indices([2, 3], PAGE)))
    owner.start_loading()
    for read in (device.get_key_buffer, device._get_broadcastable_index_buffer):
        for layer in range(LAYERS):
            read(layer)


def damaged(rank: int, scene: Callable[[int], None]) -> None:
    """Change a byte of the second layer's broadcast on the second rank."""
    broadcast, calls = distributed.broadcast, [0]

    def changing(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = broadcast(tensor, *args, **kwargs)
        calls[0] += 1
        if rank == 1 and calls[0] == 2:
            rows = tensor.view(torch.uint8).reshape(-1)
            at = 2 * PAGE * 48 if len(rows) > 3 * PAGE * 48 else 0  # of a page that was loaded
            rows[at] ^= 0xFF
        return result

    torch.distributed.broadcast = changing
    try:
        scene(rank)
    finally:
        torch.distributed.broadcast = broadcast


SCENES: dict[str, Callable[[int], None]] = {
    "deduplicated": deduplicated,
    "deduplicated_damaged": lambda rank: damaged(rank, deduplicated),
    "shared_out": shared_out,
    "shared_out_damaged": lambda rank: damaged(rank, shared_out),
}


def has(scene: str) -> bool:
    """Return whether this version of SGLang supports a scene."""
    return bool(((0, 5, 20) if scene.startswith("dedup") else (0, 5, 17)) <= base.NUMBER)


def main(rank: int, store: str, folder: Path) -> None:
    """Play every scene with the other rank."""
    distributed.init_process_group(
        "gloo",
        store=distributed.FileStore(store, 2),  # pyright: ignore[reportPrivateImportUsage]
        rank=rank,
        world_size=2,
        timeout=LIMIT,
    )
    for name in ("memory_pool_host", "pool_host.mla"):
        try:
            install([import_module(f"sglang.srt.mem_cache.{name}")])
        except ImportError:
            continue
    for name in filter(has, SCENES):
        sink = MemorySink()
        attachment = trace(Settings(gate=Gate.ON, rank=rank, ranks=2), sinks=[sink])
        SCENES[name](rank)
        session = attachment.observer.session()
        attachment.detach()
        assert session is not None
        session.close()
        (folder / f"{name}.{rank}").write_bytes(msgspec.json.encode(sink.events))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
