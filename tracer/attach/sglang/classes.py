"""SGLang's host pool classes in this process, and which of their functions are our wrappers."""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

__all__ = [
    "ANCHOR",
    "BASE",
    "GROUP",
    "device_pool_classes",
    "host_pool_classes",
    "is_host_pool",
    "is_ours",
    "ours",
    "pool_group_classes",
    "subclasses",
    "tree_classes",
]

BASE = "HostKVCache"
#: Holds no bytes: the pool whose indices DeepSeek-V4's pools use.
ANCHOR = "LogicalHostPool"

#: A group of host pools, one of which allocates the indices of all.
GROUP = "HostPoolGroup"

_HOMES = (
    "sglang.srt.mem_cache.pool_host.base",
    "sglang.srt.mem_cache.pool_host.group",
    "sglang.srt.mem_cache.memory_pool_host",
)
_DEVICE_HOME = "sglang.srt.mem_cache.memory_pool"
_TREE_HOME = "sglang.srt.mem_cache.base_prefix_cache"
_MARK = "__hicache_dbg__"
#: Cached by class, because every call of every allocator asks.
_host_pools: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def host_pool_classes() -> Iterator[type]:
    """Yield the base, all its present subclasses, and the anchor that holds no bytes."""
    yield from subclasses(_defined(BASE))
    yield from dict.fromkeys(_defined(ANCHOR))


def device_pool_classes() -> Iterator[type]:
    """Yield all present classes of device pools, and the pool that allocates states."""
    yield from subclasses(
        cls
        for name in ("KVCache", "HybridReqToTokenPool")
        if isinstance(cls := getattr(sys.modules.get(_DEVICE_HOME), name, None), type)
    )


def tree_classes() -> Iterator[type]:
    """Yield all present classes of prefix trees."""
    cls = getattr(sys.modules.get(_TREE_HOME), "BasePrefixCache", None)
    yield from subclasses([cls] if isinstance(cls, type) else [])


def pool_group_classes() -> Iterator[type]:
    """Yield the class of host pool groups, wherever this version defines it."""
    yield from subclasses(_defined(GROUP))


def subclasses(roots: Iterable[type]) -> Iterator[type]:
    """Yield each of ``roots`` and all classes derived from them so far."""
    queue = list(dict.fromkeys(roots))
    visited: set[type] = set()
    while queue:
        cls = queue.pop()
        if cls not in visited:
            visited.add(cls)
            queue.extend(cls.__subclasses__())
            yield cls


def is_host_pool(value: object) -> bool:
    """Return whether ``value`` is a host pool or an anchor."""
    known = _host_pools.get(type(value))
    if known is None:
        known = any(cls.__name__ in {BASE, ANCHOR} for cls in type(value).__mro__)
        _host_pools[type(value)] = known
    return known


def ours(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a wrapper as ours, so that the attachment can be verified later."""
    setattr(wrapper, _MARK, True)
    return wrapper


def is_ours(function: object) -> bool:
    """Return whether a function is one of our wrappers, or wraps one."""
    while function is not None:
        if _MARK in getattr(function, "__dict__", {}) and vars(function)[_MARK] is True:
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def _defined(name: str) -> Iterator[type]:
    for home in _HOMES:
        cls = getattr(sys.modules.get(home), name, None)
        if isinstance(cls, type):
            yield cls
