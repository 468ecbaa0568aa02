"""SGLang's host pool classes as they stand in this process, and which functions in them are ours."""

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
#: Holds no bytes: the pool whose indices DeepSeek-V4's pools ride on.
ANCHOR = "LogicalHostPool"

#: Host pools whose indices one of them gives away.
GROUP = "HostPoolGroup"

_HOMES = (
    "sglang.srt.mem_cache.pool_host.base",
    "sglang.srt.mem_cache.pool_host.group",
    "sglang.srt.mem_cache.memory_pool_host",
)
_DEVICE_HOME = "sglang.srt.mem_cache.memory_pool"
_TREE_HOME = "sglang.srt.mem_cache.base_prefix_cache"
_MARK = "__hicache_dbg__"
#: By class: asked for at every call of every allocator.
_host_pools: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def host_pool_classes() -> Iterator[type]:
    """The base, every subclass of it that exists by now, and the anchor that holds no bytes."""
    yield from subclasses(_defined(BASE))
    yield from dict.fromkeys(_defined(ANCHOR))


def device_pool_classes() -> Iterator[type]:
    """Every class of device pools that exists by now, and the pool that hands states out."""
    yield from subclasses(
        cls
        for name in ("KVCache", "HybridReqToTokenPool")
        if isinstance(cls := getattr(sys.modules.get(_DEVICE_HOME), name, None), type)
    )


def tree_classes() -> Iterator[type]:
    """Every class of trees that exists by now."""
    cls = getattr(sys.modules.get(_TREE_HOME), "BasePrefixCache", None)
    yield from subclasses([cls] if isinstance(cls, type) else [])


def pool_group_classes() -> Iterator[type]:
    """The class of groups of host pools, wherever this version has it."""
    yield from subclasses(_defined(GROUP))


def subclasses(roots: Iterable[type]) -> Iterator[type]:
    """Each of ``roots`` and everything that is derived from one by now."""
    waiting = list(dict.fromkeys(roots))
    seen: set[type] = set()
    while waiting:
        cls = waiting.pop()
        if cls not in seen:
            seen.add(cls)
            waiting.extend(cls.__subclasses__())
            yield cls


def is_host_pool(value: object) -> bool:
    """Whether ``value`` is a host pool, or the anchor of some."""
    known = _host_pools.get(type(value))
    if known is None:
        known = any(cls.__name__ in {BASE, ANCHOR} for cls in type(value).__mro__)
        _host_pools[type(value)] = known
    return known


def ours(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a wrapper, so that an attachment can be proved afterwards."""
    setattr(wrapper, _MARK, True)
    return wrapper


def is_ours(function: object) -> bool:
    """Whether a function is one of our wrappers, or wraps one."""
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
