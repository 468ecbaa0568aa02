# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""Objects and functions of the SGLang on the path, as tests need them."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from hicache_dbg.tracer.attach.sglang.classes import (
    device_pool_classes,
    host_pool_classes,
    subclasses,
)

__all__ = ["functions", "group"]


def functions() -> dict[str, object]:
    """Return every function of every wrapped class, as currently bound."""
    from sglang.srt.managers.cache_controller import HiCacheController, LayerDoneCounter
    from sglang.srt.mem_cache.allocator.base import BaseTokenToKVPoolAllocator
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

    others = [HiCacheController, LayerDoneCounter, BaseTokenToKVPoolAllocator, HiCacheStorage]
    return {
        f"{cls.__qualname__}.{name}": value
        for cls in (*host_pool_classes(), *device_pool_classes(), *subclasses(others))
        for name, value in vars(cls).items()
        if callable(value)
    }


def group(pools: Mapping[str, Any]) -> Any:
    """Return the real group of this version; the pool named ``kv`` is its anchor."""
    try:
        from sglang.srt.mem_cache.pool_host.group import HostPoolGroup
    except ImportError:
        from sglang.srt.mem_cache.memory_pool_host import HostPoolGroup
    entries = [
        SimpleNamespace(
            name=name,
            host_pool=pool,
            device_pool=None,
            layer_mapper=None,
            is_primary_index_anchor=name == "kv",
        )
        for name, pool in pools.items()
    ]
    return HostPoolGroup(entries)
