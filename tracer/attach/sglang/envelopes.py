"""Unified pools: a page of all layers in one piece, under a logical id that compaction can move.

Copies name physical pages, allocations logical ones. The generation of a physical page is therefore
that of the logical page stored there, so that a page moved by compaction counts as reused, never as
wrong.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from hicache_dbg.tracer.attach.sglang.arguments import argument
from hicache_dbg.tracer.attach.sglang.around import around
from hicache_dbg.tracer.attach.sglang.say import Say
from hicache_dbg.tracer.ledger import Pages

__all__ = ["BACKING", "allocating", "generations_of"]

#: Module, class and method that allocate all pages of a backing.
BACKING = (
    "sglang.srt.mem_cache.pool_host.unified",
    "_SharedPageEnvelopeHostBacking",
    "alloc_many",
)

#: How often each logical page was allocated, by backing and side name.
_allocations: WeakKeyDictionary[Any, dict[str, Pages]] = WeakKeyDictionary()


def allocating(original: Callable[..., Any], say: Say) -> Callable[..., Any]:
    """Wrap a backing's ``alloc_many``."""
    requests_of = argument(original, "requests", at=1)

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        requests = requests_of(args, kwargs)
        return (args[0], requests) if isinstance(requests, (list, tuple)) else None

    def after(about: Any, results: Any, _: BaseException | None) -> None:
        backing, requests = about
        if isinstance(results, (list, tuple)):
            for (name, _count), indices in zip(requests, results, strict=False):
                counts = _counts(backing, name)
                counts[np.unique(indices.numpy() // backing.sides[name].page_size)] += 1

    return around(say, "attach/alloc", original, before, after)


def generations_of(pool: Any) -> Callable[[Pages], Pages]:
    """Return a function that gives the generations of ``pool``'s physical pages.

    A generation is the logical page and how often that was allocated; 0 for unallocated pages.
    """
    backing, name = pool._shared_backing, pool.pool_label  # noqa: SLF001 - the pool's own map

    def generations(pages: Pages) -> Pages:
        with backing.lock:
            logical_of = backing.sides[name].physical_to_logical
            logical = np.array([logical_of.get(page, -1) for page in pages.tolist()], np.int64)
            times = _counts(backing, name)[logical]
        return np.where(logical < 0, 0, ((logical + 1) << 32) + times)

    return generations


def _counts(backing: Any, name: str) -> Pages:
    """Return how often each logical page of one side was allocated, int64 ``[pages]``."""
    by_side = _allocations.setdefault(backing, {})
    if name not in by_side:
        by_side[name] = np.zeros(backing.sides[name].page_num, np.int64)
    return by_side[name]
