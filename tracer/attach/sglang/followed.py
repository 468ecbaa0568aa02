"""The methods that are wrapped besides the pools' copies, and where they are defined."""

from collections.abc import Iterator

from hicache_dbg.tracer.attach.sglang import versions
from hicache_dbg.tracer.attach.sglang.allocators import ALLOCATORS
from hicache_dbg.tracer.attach.sglang.lookups import BATCH
from hicache_dbg.tracer.attach.sglang.storage import OF_BACKENDS, OF_CONTROLLERS
from hicache_dbg.tracer.attach.sglang.transfers import MODULES as TRANSFERS

__all__ = ["FOLLOWED", "followed"]

_CONTROLLER = (versions.GATES_MODULE, "HiCacheController")
_BACKENDS = versions.STORAGE_MODULES[-1]

#: Module, class and methods, in every supported version.
FOLLOWED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (versions.GATES_MODULE, "LayerDoneCounter", ("update_producer", "wait_until")),
    (versions.GATES_MODULE, "LayerLoadingEvent", ("complete",)),
    *(
        (module, cls, (*ALLOCATORS[cls].gives[:1], *ALLOCATORS[cls].takes[:1]))
        for module, cls in zip(
            versions.ALLOCATOR_MODULES[1:4],
            ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator", "MambaSlotAllocator"),
            strict=True,
        )
    ),
    (*_CONTROLLER, (*OF_CONTROLLERS, "_page_backup", "write", "load")),
    (_BACKENDS, "HiCacheFile", tuple(OF_BACKENDS)),
    (versions.TREE_MODULES[1], "RadixCache", ("match_prefix",)),
    (*BATCH[:2], BATCH[2:]),
    (TRANSFERS[0], "BaseKVSender", ("send",)),
    (TRANSFERS[0], "BaseKVReceiver", ("send_metadata", "poll")),
)
#: Wrapped when the first instance is created, what a class defines itself; or for a load that needs it.
_LATER = {"BaseKVSender", "BaseKVReceiver", "LayerLoadingEvent"}


def followed() -> Iterator[tuple[str, str, str]]:
    """Yield module, class and method of everything that is wrapped as soon as its module is imported."""
    for module, cls, methods in FOLLOWED:
        if cls not in _LATER:
            yield from ((module, cls, method) for method in methods)
