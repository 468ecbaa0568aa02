"""Measure what a host pool takes beside its own memory: bookkeeping per page, and opening it.

    python benchmarks/host_memory.py [--gib 64]

No page of the pools is touched, so the machine need not have 64 GiB. If the system does not promise as
much (``vm.overcommit_memory``), half of it is tried, and so on.
"""

import argparse
import resource
import sys
import tracemalloc
from collections.abc import Callable

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.deepseek_v4 import deepseek_v4_c4, deepseek_v4_c128
from hicache_dbg.pools.geometry import Layout, PoolGeometry
from hicache_dbg.pools.host import host_pool_for
from hicache_dbg.pools.kinds import index_k, mha, mla

GIB = 1 << 30
#: Pools as large models have them.
POOLS: tuple[Callable[[], PoolGeometry], ...] = (
    lambda: mla(61, 64),
    lambda: mha(64, 64, heads=8, head_dim=128),
    lambda: index_k(61, 64, "fp8"),
    lambda: deepseek_v4_c4(21),
    lambda: deepseek_v4_c128(20),
)


def touched() -> int:
    """Return the most bytes this process has had in memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> int:
    """Measure and print; exit 1 if a page takes more than 64 bytes of bookkeeping."""
    parser = argparse.ArgumentParser(description="Measure a host pool's memory beside its own.")
    parser.add_argument("--gib", type=int, default=64, help="size of the pools, in GiB")
    size = parser.parse_args().gib * GIB
    worst = 0.0
    print(
        "| pool | GiB | pages | tokens x layers | opening: Python, touched | bookkeeping, B/page |"
    )
    print("|---|---:|---:|---:|---:|---:|")
    for make in POOLS:
        geometry = make()
        page = geometry.page_bytes() * geometry.layers
        opened, python, memory = opening(geometry, size)
        pages = size // page
        tracemalloc.start()
        allocator = PageAllocator(pages, geometry.name)
        book = tracemalloc.get_traced_memory()[0] / pages
        tracemalloc.stop()
        del allocator
        worst = max(worst, book)
        cells = pages * geometry.tokens_per_page * geometry.layers
        print(
            f"| {geometry.name} | {opened // GIB} | {pages:,} | {cells:,} | "
            f"{python / 1024:.1f} KiB, {memory / 1024:.0f} KiB | {book:.1f} |"
        )
    return 0 if worst <= 64 else 1


def opening(geometry: PoolGeometry, size: int) -> tuple[int, int, int]:
    """Return the size that could be opened, and its cost: Python's bytes, and memory touched."""
    page = geometry.page_bytes() * geometry.layers
    while True:
        before = touched()
        tracemalloc.start()
        try:
            with host_pool_for(geometry, size // page, Layout.PAGE_FIRST):
                return size, tracemalloc.get_traced_memory()[1], touched() - before
        except OSError as error:
            if size <= GIB:
                raise
            print(f"{size // GIB} GiB: {error}; trying half of it", file=sys.stderr)
            size //= 2
        finally:
            tracemalloc.stop()


if __name__ == "__main__":
    sys.exit(main())
