# mypy: disable-error-code="import-not-found,attr-defined"
# pyright: reportMissingImports=false
"""SGLang's tree of components over its own device pools, allocators, host pools and controller, on a CPU.

The server's configuration is provided here, and host memory is not pinned; nothing else is
replaced.
"""

import dataclasses
import sys
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

__all__ = ["STACKS", "Stack", "configured", "stack"]

LAYERS = 2
_MEMORY = {
    "hicache_ratio": 2.0,
    "hicache_size": 0,
    "hicache_io_backend": "kernel",
    "hicache_write_policy": "write_through",
    "hicache_host_memory_mode": "cache",
    "hicache_storage_prefetch_policy": "best_effort",
}
_ALONE = {
    "launch_world_size": 1,
    "nnodes": 1,
    "dcp_enabled": False,
    "attn_dcp_size": 1,
    "attn_dcp_rank": 0,
}


class Unset(SimpleNamespace):
    """Returns None for every attribute that was not set."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def configured(patch: pytest.MonkeyPatch, layout: str) -> Any:
    """Publish a server's configuration, also as the server's own arguments."""
    from sglang.srt import runtime_context
    from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler  # noqa: F401

    memory = Unset(**_MEMORY, hicache_mem_layout=layout)
    bags = {"memory": memory}
    context = type(runtime_context._CONTEXT)
    patch.setattr(context, "config_bag", lambda _, name: bags.setdefault(name, Unset()))
    alone = Unset(**_ALONE)
    for name, module in list(sys.modules.items()):
        if name.startswith("sglang.srt.m") and hasattr(module, "get_parallel"):
            patch.setattr(module, "get_parallel", lambda: alone)
    registers = {"cudaHostRegister": lambda *_: 0, "cudaHostUnregister": lambda *_: 0}
    patch.setattr(torch.cuda, "cudart", lambda: SimpleNamespace(**registers))
    return memory


@dataclass(frozen=True)
class Stack:
    """A tree with its host cache; ``pools`` gives the expected host pools, by name and page."""

    tree: Any
    allocator: Any
    page: int
    pools: tuple[str, ...]

    def key(self, tokens: int) -> Any:
        """Return a prefix of so many tokens."""
        from sglang.srt.mem_cache.radix_cache import RadixKey

        return RadixKey(array("q", range(tokens)), None)

    def look_up(self, name: str, pages: int) -> tuple[Any, Any]:
        """Look up so many pages; return the request and its match."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        request = Unset(rid=name, kv=Unset(), swa_host_hit_length=0, mamba_host_hit_length=0)
        found = self.tree.match_prefix(
            MatchPrefixParams(key=self.key(pages * self.page), req=request)
        )
        request.last_node = found.last_device_node
        request.swa_host_hit_length = getattr(found, "swa_host_hit_length", 0)
        return request, found

    def insert(self, pages: int) -> torch.Tensor:
        """Insert a request's filled pages into the tree, and back them up."""
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams

        slots: torch.Tensor = self.allocator.alloc(pages * self.page)
        self.tree.insert(InsertParams(key=self.key(pages * self.page), value=slots))
        if hasattr(self.tree, "flush_pending_backups"):
            self.tree.flush_pending_backups()
        self.tree.writing_check()
        return slots

    def evict(self, pages: int) -> None:
        """Evict pages from the device; the host keeps them."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        tokens = pages * self.page
        asked = {"num_tokens": tokens, "swa_num_tokens": tokens}
        known = {field.name for field in dataclasses.fields(EvictParams)}
        self.tree.evict(EvictParams(**{k: v for k, v in asked.items() if k in known}))

    def load(self, request: Any, found: Any) -> int:
        """Load what was found on the host; return the number of tokens."""
        from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams

        loaded, _ = self.tree.init_load_back(
            InitLoadBackParams(found.best_match_node, found.host_hit_length, req=request)
        )
        self.tree.ready_to_load_host_cache()
        self.tree.loading_check()
        return loaded if isinstance(loaded, int) else len(loaded)


def _rows(cls: str, page: int, **given: Any) -> Any:
    from sglang.srt.mem_cache import memory_pool

    return getattr(memory_pool, cls)(
        size=6 * page,
        page_size=page,
        dtype=torch.bfloat16,
        layer_num=LAYERS,
        device="cpu",
        enable_memory_saver=False,
        **given,
    )


def _paged(device: Any, page: int) -> Any:
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator

    return PagedTokenToKVPoolAllocator(
        6 * page, page, torch.bfloat16, "cpu", device, need_sort=False
    )


_LATENT = {"kv_lora_rank": 16, "qk_rope_head_dim": 8}


def _mha() -> tuple[Any, Any, int, tuple[str, ...]]:
    device = _rows("MHATokenToKVPool", 4, head_num=2, head_dim=8)
    return device, _paged(device, 4), 4, ("kv",)


def _mla() -> tuple[Any, Any, int, tuple[str, ...]]:
    device = _rows("MLATokenToKVPool", 4, **_LATENT)
    return device, _paged(device, 4), 4, ("kv",)


def _dsa() -> tuple[Any, Any, int, tuple[str, ...]]:
    device = _rows("DSATokenToKVPool", 64, **_LATENT, kv_cache_dim=24, index_head_dim=128)
    return device, _paged(device, 64), 64, ("kv", "indexer")


def _swa() -> tuple[Any, Any, int, tuple[str, ...]]:
    """Return pages of one token: the allocator gives larger ones only to a running batch."""
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    device = SWAKVPool(
        size=24,
        size_swa=12,
        page_size=1,
        dtype=torch.bfloat16,
        head_num=2,
        head_dim=8,
        device="cpu",
        swa_attention_layer_ids=[0, 2],
        full_attention_layer_ids=[1, 3],
    )
    allocator = SWATokenToKVPoolAllocator(24, 12, 1, torch.bfloat16, "cpu", device, need_sort=False)
    return device, allocator, 1, ("full", "swa")


#: By name: device pool, allocator, tokens of a page, names of the host pools.
STACKS: Mapping[str, Callable[[], tuple[Any, Any, int, tuple[str, ...]]]] = {
    "mha": _mha,
    "mla": _mla,
    "dsa": _dsa,
    "swa": _swa,
}


def stack(name: str, memory: Any) -> Stack:
    """Build a tree with its host cache, as a scheduler does."""
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.components import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    from torch import distributed

    device, allocator, page, pools = STACKS[name]()
    for tensor in _tensors(device):
        tensor.view(torch.uint8).random_(0, 256)
    components = (ComponentType.FULL, *([ComponentType.SWA] if name == "swa" else []))
    asked = {
        "disable": False,
        "req_to_token_pool": SimpleNamespace(device="cpu"),
        "token_to_kv_pool_allocator": allocator,
        "page_size": page,
        "tp_cache_group": distributed.group.WORLD,
        "sliding_window_size": 4 * page if name == "swa" else None,
        "tree_components": components,
        "tree_core_backend": "python",
    }
    known = {field.name for field in dataclasses.fields(CacheInitParams)}
    params = CacheInitParams(**{k: v for k, v in asked.items() if k in known})
    tree = UnifiedRadixCache(params)
    tree.init_hicache(memory, params)
    tree.load_back_threshold = 1
    return Stack(tree, allocator, page, pools)


def _tensors(device: Any) -> list[torch.Tensor]:
    inner = [getattr(device, name, None) for name in ("full_kv_pool", "swa_kv_pool")]
    names = ("k_buffer", "v_buffer", "kv_buffer", "index_k_with_scale_buffer")
    found = [getattr(one, name, ()) for one in (device, *inner) for name in names]
    return [tensor for layers in found if isinstance(layers, list) for tensor in layers]
