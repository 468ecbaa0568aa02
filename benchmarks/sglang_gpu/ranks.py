# mypy: disable-error-code="import-not-found,attr-defined"
# pyright: reportMissingImports=false
"""Layers that a rank receives by broadcast, digested on the GPU: two ranks on one GPU, over gloo.

``python ranks.py RANK STORE FOLDER`` is one rank; :func:`ranks` starts both and joins their statements.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import driving
import msgspec
import prelude  # noqa: F401 - before anything of SGLang
import setups
import torch
from torch import distributed
from tracing import Row, Traced

from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.events import Copied, Event, Finding, Stated, Topic

__all__ = ["ranks"]

LAYERS, PAGE, PAGES, LIMIT_S = 5, 64, 12, 60


def ranks(only: str = "") -> Iterator[Row]:
    """Yield one row for each scene."""
    names = [name for name in SCENES if _has(name) and any(p in name for p in only.split(","))]
    if not names:
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        last_lines = _play(folder, names)
        for name in names:
            files = [folder / f"{name}.{rank}" for rank in range(2)]
            if all(file.is_file() for file in files):
                yield _row(
                    name, [msgspec.json.decode(f.read_bytes(), type=list[Event]) for f in files]
                )
            else:
                yield Row("ranks", name, f"not run: {last_lines}"[:300], "stated alike", kept=False)


def _play(folder: Path, names: list[str]) -> list[str]:
    """Run the scenes on two ranks, which leave their events in ``folder``; return their last lines."""
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, f"{rank}", f"{folder / 'store'}", f"{folder}", *names],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [line for output in outputs for line in output.strip().splitlines()[-1:]]


def _row(name: str, events: list[list[Event]]) -> Row:
    """Return the row of a scene from the events of each rank."""
    first, second = (_stated(rank) for rank in events)
    alone = [event for rank in events for event in rank if isinstance(event, Finding)]
    joined, stated = join(events), sum(map(len, second.values()))
    verified = sum(event.verified for rank in events for event in rank if isinstance(event, Copied))
    found = [(f.cls.value, f.component, f.layer, f.pages) for f in joined]
    clean = bool(stated) and first.keys() == second.keys() and not alone
    if name.endswith("damaged"):
        kept = clean and found == [("rank_divergence", "latent", 1, (0,))]
        goal = "layer 1 of page 0 found"
    else:
        kept, goal = clean and first == second and not found and verified > 0, "stated alike"
    result = f"{stated} tiles stated by each rank, {verified} verified, {len(alone)} findings alone, joined {found}"
    return Row("ranks", name, result, goal, kept)


def _stated(events: list[Event]) -> dict[tuple[object, ...], Sequence[str]]:
    """Return the digests that a rank stated, by load, component and page."""
    return {
        (event.request, event.component, event.page): event.values
        for event in events
        if isinstance(event, Stated) and event.topic is Topic.TILES
    }


# -- one rank -------------------------------------------------------------------------------------


def _latent_pool(cls: str, module: str, **given: Any) -> Any:
    kind = getattr(import_module(f"sglang.srt.mem_cache.{module}"), cls)
    pool = kind(
        size=(PAGES - 1) * PAGE,
        page_size=PAGE,
        kv_lora_rank=512,
        dtype=torch.bfloat16,
        qk_rope_head_dim=64,
        layer_num=LAYERS,
        device="cuda",
        enable_memory_saver=False,
        **given,
    )
    for layer, buffer in enumerate(pool.kv_buffer):
        torch.manual_seed(layer)
        buffer.view(torch.uint8).random_(0, 256)
    return pool


def _host_pool(device: Any) -> Any:
    cls = setups.host_class("MLATokenToKVPoolHost", "mla")
    if not setups.DESCRIBED:
        return cls(device, 2.0, 0, PAGE, "layer_first")
    sharded = bool(getattr(device, "layer_shard_enabled", False))
    return cls(
        device._mla_buffer_info(),  # noqa: SLF001 - as SGLang's own builder asks for it
        *(2.0, 0, PAGE, "layer_first"),
        device_capacity_tokens=device.size,
        start_layer=0,
        end_layer=LAYERS,
        target_layer_num=-(-LAYERS // 2) if sharded else LAYERS,
        layer_shard_enabled=sharded,
    )


def _slots(*pages: int) -> torch.Tensor:
    slots: torch.Tensor = driving.indices(torch.tensor(pages), PAGE)
    return slots


def _deduplicated(rank: int) -> None:
    """Load on the first rank and broadcast each layer; both ranks write it to pages of their own."""
    from sglang.srt.mem_cache import mla_host_dedup

    mla_host_dedup.mla_dedup_rank_and_size = lambda: (rank, 2)
    device = _latent_pool("MLATokenToKVPool", "memory_pool")
    pages = _slots(*[(2, 3), (4, 1)][rank]).cuda()
    broadcaster = mla_host_dedup.MLAHostDedupBroadcaster(device, distributed.group.WORLD, 0)
    # Tracing starts when this is built, also on the rank that keeps no host bytes.
    pool = _host_pool(device)
    host = _slots(5, 0).cuda()
    if rank == 0:
        pool.backup_from_device_all_layer(device, host, _slots(1, 4).cuda(), "kernel")
    prepared = broadcaster.prepare_broadcast(pages, torch.cuda.current_stream())
    for layer in range(LAYERS):
        if rank == 0:
            pool.load_to_device_per_layer(device, host, pages, layer, "kernel")
        broadcaster.broadcast_loaded_layer(layer, prepared)
    torch.cuda.synchronize()
    setups.Setup(pool, PAGE, device.kv_buffer, PAGE, device, LAYERS).destroy()


def _shared_out(rank: int) -> None:
    """Load on each rank the layers it owns; reading a layer broadcasts it from its owner."""
    place = SimpleNamespace(world_size=2, pynccl_comm=None, cpu_group=distributed.group.WORLD)
    parallel = SimpleNamespace(attn_cp_group=place, attn_dcp_size=1, attn_dcp_rank=0)
    for module in ("memory_pool", "dsa_cache_layer_split"):
        home: Any = import_module(f"sglang.srt.mem_cache.{module}")
        home.get_parallel = lambda: parallel
    device = _latent_pool(
        "LayerSplitDSATokenToKVPool",
        "dsa_cache_layer_split",
        index_head_dim=128,
        kv_cache_dim=576,
        layer_shard_rank=rank,
        layer_shard_size=2,
    )
    setup = setups.Setup(_host_pool(device), PAGE, device.kv_buffer, PAGE, device, LAYERS)
    owner = driving.controller(setup, "kernel")
    host = _slots(5, 0)
    owner.write_queue.append(driving.operation(host, _slots(1, 4).cuda()))
    owner.start_writing()
    owner.ack_write_queue[-1].finish_event.synchronize()
    owner.load_queue.append(driving.operation(host, _slots(2, 3).cuda()))
    owner.start_loading()
    torch.cuda.synchronize()
    for read in (device.get_key_buffer, device._get_broadcastable_index_buffer):  # noqa: SLF001
        for layer in range(LAYERS):
            read(layer)
    torch.cuda.synchronize()
    setup.destroy()


def _damaged(rank: int, scene: Callable[[int], None]) -> None:
    """Change a byte of the second layer's broadcast on the second rank."""
    broadcast, calls = distributed.broadcast, [0]

    def changing(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = broadcast(tensor, *args, **kwargs)
        calls[0] += 1
        if rank == 1 and calls[0] == 2:
            rows = tensor.view(torch.uint8).reshape(-1)
            at = 2 * PAGE * 1152 if len(rows) > 3 * PAGE * 1152 else 0  # of a page that was loaded
            rows[at] ^= 0xFF
        return result

    distributed.broadcast = changing
    try:
        scene(rank)
    finally:
        distributed.broadcast = broadcast


SCENES: dict[str, Callable[[int], None]] = {
    "deduplicated": _deduplicated,
    "deduplicated, damaged": lambda rank: _damaged(rank, _deduplicated),
    "shared_out": _shared_out,
    "shared_out, damaged": lambda rank: _damaged(rank, _shared_out),
}


def _has(scene: str) -> bool:
    """Return whether this version of SGLang has what a scene needs."""
    since = (0, 5, 20) if scene.startswith("dedup") else (0, 5, 17)
    return tuple(setups.NUMBER) >= since


def main(rank: int, store: str, folder: Path, names: list[str]) -> None:
    """Play the scenes with the other rank."""
    distributed.init_process_group(
        "gloo",
        store=distributed.FileStore(store, 2),  # pyright: ignore[reportPrivateImportUsage]
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=LIMIT_S),
    )
    for name in names:
        traced = Traced(rank=rank, ranks=2)
        SCENES[name](rank)
        (folder / f"{name}.{rank}").write_bytes(msgspec.json.encode(traced.close()))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
