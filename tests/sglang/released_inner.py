# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""Device pools made of device pools, on a CPU: four layers of two kinds."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

__all__ = ["INNER", "LAYERS", "Read"]

LAYERS = 4
_MHA = {"dtype": torch.bfloat16, "head_num": 2, "head_dim": 8, "device": "cpu", "page_size": 4}
_V4 = (torch.uint8, 448, 64)


@dataclass(frozen=True)
class Read:
    """A read of one layer of the model through the outer pool and past it.

    ``layer`` is the gate's number; ``gated`` and ``past`` take the outer pool.
    """

    build: Callable[[], Any]
    layer: int
    gated: Callable[[Any], Any]
    past: Callable[[Any], Any]


def _old(cls: type) -> dict[str, Any]:
    """Return the additional arguments of early versions."""
    asked = inspect.signature(cls).parameters
    return {name: False for name in ("enable_kvcache_transpose",) if name in asked}


def swa() -> Any:
    """Return a pool whose layers 0 and 2 have a window, while 1 and 3 see everything."""
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    ids = {"swa_attention_layer_ids": [0, 2], "full_attention_layer_ids": [1, 3]}
    return SWAKVPool(size=24, size_swa=12, **ids, **_MHA, **_old(SWAKVPool))


def hybrid() -> Any:
    """Return a pool whose layers 1 and 3 have full attention, the others a state."""
    from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool

    return HybridLinearKVPool(
        size=24,
        full_attention_layer_ids=[1, 3],
        mamba_pool=None,
        **_MHA,
        **_old(HybridLinearKVPool),
    )


def deepseek_v4() -> Any:
    """Return layers without compression, of C4, of C128, and of C4 again; the parts are real, the sizes ours."""
    from sglang.srt.mem_cache import deepseek_v4_memory_pool as v4

    pool = object.__new__(v4.DeepSeekV4TokenToKVPool)
    window, c4, c128 = (
        v4.DeepSeekV4SingleKVPool(512, page, *_V4, layers, "cpu", enable_memory_saver=False)
        for page, layers in ((256, LAYERS), (64, 2), (2, 1))
    )
    server = SimpleNamespace(enable_deepseek_v4_fp4_indexer=False)
    told = {
        **dict.fromkeys(("get_global_server_args", "get_server_args"), server),
        "get_exec": SimpleNamespace(kernel=server),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, answer in told.items():  # one of them, by version
            patch.setattr(v4, name, lambda answer=answer: answer, raising=False)
        index = v4.DeepSeekV4IndexerPool(
            *(512, 64, torch.uint8, 128, 2, "cpu"), enable_memory_saver=False
        )
    given = {
        "compression_ratios": [0, 4, 128, 4],
        "sources_by_ratio": {},
        "_stage_start": 0,
        "_stage_end": LAYERS,
        "start_layer": 0,
        "layer_transfer_counter": None,
        "request_window": None,
        "swa_kv_pool": window,
        "c4_kv_pool": c4,
        "c128_kv_pool": c128,
        "c4_indexer_kv_pool": index,
        "kv_pools": {4: c4, 128: c128},
        "index_pools": {4: index},
    }
    for name, value in given.items():
        if not isinstance(getattr(type(pool), name, None), property):
            setattr(pool, name, value)
    pool._init_compressed_layer_mapping()
    return pool


INNER: Mapping[str, Read] = {
    "full beside a window": Read(
        swa, 3, lambda p: p.get_key_buffer(3), lambda p: p.full_kv_pool.get_key_buffer(1)
    ),
    "window": Read(
        swa, 2, lambda p: p.get_value_buffer(2), lambda p: p.swa_kv_pool.get_value_buffer(1)
    ),
    "full beside states": Read(
        hybrid, 3, lambda p: p.get_key_buffer(3), lambda p: p.full_kv_pool.get_key_buffer(1)
    ),
    "c4": Read(
        deepseek_v4,
        3,
        lambda p: p.get_extra_key_buffer(3),
        lambda p: p.c4_kv_pool.get_key_buffer(1),
    ),
    "c128": Read(
        deepseek_v4,
        2,
        lambda p: p.get_extra_key_buffer(2),
        lambda p: p.c128_kv_pool.get_key_buffer(0),
    ),
    "index": Read(
        deepseek_v4,
        3,
        lambda p: p.get_index_k_with_scale_buffer(3),
        lambda p: p.c4_indexer_kv_pool.get_index_k_with_scale_buffer(1),
    ),
    "v4 window": Read(
        deepseek_v4,
        3,
        lambda p: p.wait_layer_transfer(3) or p.swa_kv_pool.get_key_buffer(3),
        lambda p: p.swa_kv_pool.get_key_buffer(3),
    ),
}
