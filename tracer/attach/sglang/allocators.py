"""SGLang's allocators of host and device pools: which methods allocate pages, and which free them.

Some reject a page that is free already; most do not, and then their free list holds it twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hicache_dbg.tracer.ledger import Pages

__all__ = [
    "ALLOCATORS",
    "CHECKED",
    "HOST",
    "STRIPED",
    "Methods",
    "Named",
    "given_pages",
    "taken_pages",
]


@dataclass(frozen=True, slots=True)
class Methods:
    """The methods of one class of allocators.

    Args:
        gives: methods that allocate; they return indices, or None if there is no room.
        takes: methods that free indices; the first exists in every version.
        takes_pages: methods that free page ids.
        deferred: methods that execute frees recorded earlier by the methods above.
        resets: methods that make all pages free, or restore a saved state.
    """

    gives: tuple[str, ...] = ("alloc",)
    takes: tuple[str, ...] = ("free",)
    takes_pages: tuple[str, ...] = ()
    deferred: tuple[str, ...] = ()
    resets: tuple[str, ...] = ("clear",)


#: For every host pool class except CHECKED, whose classes check allocation themselves, by other ids.
HOST = Methods()
CHECKED = frozenset({"UnifiedPageEnvelopeHostPool"})

#: Device allocators with their own free list; the others are composed of these.
ALLOCATORS: Mapping[str, Methods] = {
    "BaseTokenToKVPoolAllocator": Methods(
        gives=(), takes=(), deferred=("free_group_end",), resets=("restore_state",)
    ),
    "TokenToKVPoolAllocator": Methods(),
    "PagedTokenToKVPoolAllocator": Methods(
        gives=("alloc", "alloc_extend", "alloc_decode"),
        takes=("free", "free_segment"),
        takes_pages=("free_page_ids",),
        deferred=("free_group_end",),
    ),
    "MambaSlotAllocator": Methods(gives=("_do_alloc",)),
    "PageInterleavePoolAllocator": Methods(gives=("alloc_extend",)),
}

#: Module, class and method that allocate from a host pool whose pages are interleaved over ranks.
STRIPED = ("sglang.srt.mem_cache.pool_host.page_interleave", "PageInterleaveHostPool", "alloc")


@dataclass(frozen=True, slots=True)
class Named:
    """The pages that one call names.

    ``pages`` has each page named as a whole once, and once more if one of its indices is named
    twice; ``partly`` are the pages of which only some indices are named.
    """

    pages: Pages
    partly: Pages


def given_pages(slots: Pages, page: int, *, device: bool) -> Pages:
    """Return the pages that a call allocated.

    A device allocator allocates a page with its first token: later tokens lie in a page allocated
    before.
    """
    if device:
        slots = slots[slots % page == 0]
    pages: Pages = np.unique(slots // page)
    return pages


def taken_pages(slots: Pages, page: int, *, device: bool) -> Named:
    """Return the pages that a call freed.

    A device allocator frees a page with any of its tokens.
    """
    distinct, counts = np.unique(slots, return_counts=True)
    pages, filled = np.unique(distinct // page, return_counts=True)
    repeated = np.unique(distinct[counts > 1] // page)
    partly = pages[filled < page] if not device else pages[:0]
    whole = pages[~np.isin(pages, partly)]
    return Named(np.concatenate([whole, repeated[~np.isin(repeated, partly)]]), partly)
