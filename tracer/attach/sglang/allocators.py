"""SGLang's allocators, of host pools and of device pools: which methods give pages away, and take them.

Some refuse a page that is free already, most do not: their free list holds it twice from then on.
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
        gives: return indices, or None where there is no room.
        takes: are given indices; the first is there in every version.
        takes_pages: are given page ids.
        deferred: give pages back that were taken before, through the methods above.
        resets: make all pages free, or put a state back that was kept.
    """

    gives: tuple[str, ...] = ("alloc",)
    takes: tuple[str, ...] = ("free",)
    takes_pages: tuple[str, ...] = ()
    deferred: tuple[str, ...] = ()
    resets: tuple[str, ...] = ("clear",)


#: Every host pool class, but for those that check all of it themselves, under ids of their own.
HOST = Methods()
CHECKED = frozenset({"UnifiedPageEnvelopeHostPool"})

#: Device allocators that keep a free list of their own; the others are made of these.
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

#: Module, class and method through which slots of a host pool are given away that is dealt out, page by
#: page, to as many ranks as share it.
STRIPED = ("sglang.srt.mem_cache.pool_host.page_interleave", "PageInterleaveHostPool", "alloc")


@dataclass(frozen=True, slots=True)
class Named:
    """Pages that one call names.

    ``pages`` has each page once, and again for each index of it that is named twice; ``partly``
    are those of which only some indices are named.
    """

    pages: Pages
    partly: Pages


def given_pages(slots: Pages, page: int, *, device: bool) -> Pages:
    """The pages that an allocator gave away.

    A device allocator gives a page away with its first token: those behind lie in one that was
    given before.
    """
    if device:
        slots = slots[slots % page == 0]
    pages: Pages = np.unique(slots // page)
    return pages


def taken_pages(slots: Pages, page: int, *, device: bool) -> Named:
    """The pages that an allocator took back; a device allocator takes them with any of their tokens."""
    once, counts = np.unique(slots, return_counts=True)
    pages, filled = np.unique(once // page, return_counts=True)
    again = np.unique(once[counts > 1] // page)
    partly = pages[filled < page] if not device else pages[:0]
    whole = pages[~np.isin(pages, partly)]
    return Named(np.concatenate([whole, again[~np.isin(again, partly)]]), partly)
