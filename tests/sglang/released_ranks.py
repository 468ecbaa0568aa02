# mypy: disable-error-code="import-not-found,attr-defined"
# pyright: reportMissingImports=false
"""Play one of two ranks over gloo: python released_ranks.py RANK STORE FOLDER. Writes each scene's events."""

import sys
import warnings
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import rank_scenes
    import released_base as base
    import released_driving
    from copy_stand_ins import install

from hicache_dbg.tracer.attach.sglang.start import trace
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.settings import Gate, Settings

__all__ = ["has"]

LIMIT = timedelta(seconds=60)


def has(scene: str) -> bool:
    """Return whether this version of SGLang supports a scene."""
    return bool(rank_scenes.has(scene, base.NUMBER))


def _controller(pool: Any, device: Any) -> Any:
    released_driving.LAYERS = rank_scenes.LAYERS
    setup = base.Setup(pool, rank_scenes.PAGE, device.kv_buffer, rank_scenes.PAGE, device)
    return released_driving.controller(setup, "kernel")


STAGE = rank_scenes.Stage(
    home=base,
    device="cpu",
    pages=7,
    widths=(16, 8),
    controller=_controller,
    operation=released_driving.operation,
)


def main(rank: int, store: str, folder: Path) -> None:
    """Play every scene with the other rank."""
    rank_scenes.meet(rank, store, LIMIT)
    for name in ("memory_pool_host", "pool_host.mla"):
        try:
            install([import_module(f"sglang.srt.mem_cache.{name}")])
        except ImportError:
            continue
    for name in filter(has, rank_scenes.SCENES):
        sink = MemorySink()
        attachment = trace(Settings(gate=Gate.ON, rank=rank, ranks=2), sinks=[sink])
        rank_scenes.SCENES[name](STAGE, rank)
        session = attachment.observer.session()
        attachment.detach()
        assert session is not None
        session.close()
        (folder / f"{name}.{rank}").write_bytes(msgspec.json.encode(sink.events))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
