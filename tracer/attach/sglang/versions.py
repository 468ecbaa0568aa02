"""Differences between versions of SGLang, as tables: where operations begin and end."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = [
    "ACKNOWLEDGED",
    "ALLOCATOR_MODULES",
    "ANY",
    "COUNTED",
    "DEVICE_MODULES",
    "GATES_MODULE",
    "LOADS",
    "NEWEST",
    "OLDEST",
    "OPERATIONS",
    "POOL_MODULES",
    "STORAGE_MODULES",
    "TREE_MODULES",
    "Operation",
    "Versions",
    "events_of",
    "layers_brought",
    "layers_sent",
    "rides_on",
    "supported",
]

OLDEST, NEWEST = "0.5.13", "0.5.23"


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``0.5.10.post1`` counts as ``0.5.10``."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


@dataclass(frozen=True, slots=True)
class Versions:
    """A range of versions, both ends inclusive; an empty end is open."""

    since: str = OLDEST
    until: str = ""

    def __contains__(self, version: str) -> bool:
        own = _numbers(version)
        return _numbers(self.since) <= own and (not self.until or own <= _numbers(self.until))


ANY = Versions("0")


def supported(version: str) -> bool:
    """Return whether the tables were written for this version."""
    return version in Versions(OLDEST, NEWEST)


@dataclass(frozen=True, slots=True)
class Operation:
    """A method that is one operation, however many pools and layers it moves."""

    module: str
    cls: str
    method: str
    versions: Versions = ANY

    def __str__(self) -> str:
        return f"{self.cls}.{self.method}"


_MEM = "sglang.srt.mem_cache"
_MANAGERS = "sglang.srt.managers"
_HYBRID = f"{_MEM}.hybrid_cache.hybrid_cache_controller"
_BEFORE_ENGINE = Versions(OLDEST, "0.5.17")
_WITH_ENGINE = Versions("0.5.18")


def _operations(module: str, cls: str, methods: str, versions: Versions) -> Iterator[Operation]:
    for method in methods.split():
        yield Operation(module, cls, method, versions)


OPERATIONS: tuple[Operation, ...] = (
    *_operations(
        f"{_MANAGERS}.cache_controller",
        "HiCacheController",
        "start_writing start_loading",
        _BEFORE_ENGINE,
    ),
    *_operations(_HYBRID, "HybridCacheController", "start_writing start_loading", _BEFORE_ENGINE),
    *_operations(
        f"{_MEM}.l2_transfer",
        "L2TransferEngine",
        "submit_device_to_host submit_host_to_device",
        _WITH_ENGINE,
    ),
    Operation(
        f"{_MANAGERS}.hisparse_coordinator", "HiSparseCoordinator", "_preload_to_device_buffer"
    ),
)

#: Versions in which SGLang counts the bytes of its copies.
COUNTED = Versions("0.5.18")

#: Every module that defines host pools, or groups of them, in some version.
POOL_MODULES: tuple[str, ...] = (
    f"{_MEM}.memory_pool_host",
    f"{_MEM}.pool_host.base",
    f"{_MEM}.pool_host.group",
    *(
        f"{_MEM}.pool_host.{name}"
        for name in (
            "mha",
            "mla",
            "dsa",
            "mamba",
            "qsa",
            "unified",
            "mha_mxfp8",
            "minimax_m3_nvfp4",
        )
    ),
)

#: Every module that defines device pools, whose accessors read layers.
DEVICE_MODULES: tuple[str, ...] = tuple(
    f"{_MEM}.{name}"
    for name in (
        "memory_pool",
        "swa_memory_pool",
        "deepseek_v4_memory_pool",
        "minimax_m3_nvfp4_pool",
        "dsa_cache_layer_split",
        "page_interleave_pool",
    )
)
#: Every module that defines device allocators.
ALLOCATOR_MODULES: tuple[str, ...] = tuple(
    f"{_MEM}.allocator.{name}" for name in ("base", "token", "paged", "mamba", "page_interleave")
)
#: The module of the layer gates and of the counter that assigns them.
GATES_MODULE = f"{_MANAGERS}.cache_controller"
#: Modules that move pages to storage: the controllers, and the base of all backends.
STORAGE_MODULES: tuple[str, ...] = (GATES_MODULE, _HYBRID, f"{_MEM}.hicache_storage")

#: Every module that defines prefix trees.
TREE_MODULES: tuple[str, ...] = tuple(
    f"{_MEM}.{name}"
    for name in (
        "base_prefix_cache",
        "radix_cache",
        "hiradix_cache",
        "swa_radix_cache",
        "pure_swa_radix_cache",
        "mamba_radix_cache",
        "hi_mamba_radix_cache",
        "unified_radix_cache",
    )
)


#: The attribute in which a controller keeps the events of its operations, newest last.
ACKNOWLEDGED = {"start_writing": "ack_write_queue", "start_loading": "ack_load_queue"}


def events_of(owner: Any, method: str, result: Any) -> tuple[Any, Any, bool]:
    """Return the start and finish events of a submitted operation, and whether they have timing.

    Events that do not exist are None. When the start event has completed, what a backup reads
    has been written, including its indices. The start event is None for controllers whose pools
    translate the indices on the way.
    """
    if not hasattr(result, "finish_event"):
        queue = getattr(owner, ACKNOWLEDGED.get(method, ""), None)
        if not queue:
            return None, None, False
        result = queue[-1]
    timed = bool(getattr(result, "timing_enabled", False))
    hybrid = method in ACKNOWLEDGED and type(owner).__name__ != "HiCacheController"
    return None if hybrid and not timed else result.start_event, result.finish_event, timed


#: Operations that are loads.
LOADS = frozenset({"start_loading", "submit_host_to_device"})


def layers_sent(owner: Any, method: str, _: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return how many layers a load goes through; 0 if the operation is not a load."""
    if method == "start_loading":
        return int(owner.layer_num)
    if method == "submit_host_to_device":
        return int(kwargs.get("transfer_layer_id_max") or kwargs.get("layer_num") or 0)
    return 0


def layers_brought(owner: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return how many layers an operation moves of each of its pools in one go; 0 if unsure.

    It is unsure if a pool occurs twice, or its layers under other numbers.
    """
    if method == "start_loading":
        # Other controllers also load the pools that ride on theirs.
        single_pool = type(owner).__name__ == "HiCacheController"
        return layers_sent(owner, method, args, kwargs) if single_pool else 0
    transfers = args[0] if args else kwargs.get("transfers", ())
    if len(transfers) == 1 and getattr(transfers[0], "layer_mapper", None) is None:
        return int(kwargs.get("transfer_layer_id_max") or kwargs.get("layer_num") or 0)
    mapped = any(getattr(transfer, "layer_mapper", None) is not None for transfer in transfers)
    distinct = len({id(transfer.host_pool) for transfer in transfers}) == len(transfers)
    return layers_sent(owner, method, args, kwargs) if distinct and not mapped else 0


def rides_on(pool: str) -> str:
    """Return whose indices a pool of a group uses, by their names; empty if it allocates its own.

    A name that the group does not have means the group's anchor.
    """
    if pool.endswith("_state") or pool == "draft_swa":
        return "swa"
    return "anchor" if pool.startswith(("deepseek_v4", "draft", "indexer", "qsa")) else ""
