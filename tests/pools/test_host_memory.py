"""The memory cost of opening a host pool, beside the pool's own memory."""

import re
import resource
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.deepseek_v4 import deepseek_v4_c4, deepseek_v4_c128
from hicache_dbg.pools.geometry import Layout, PoolGeometry
from hicache_dbg.pools.host import host_pool_for
from hicache_dbg.pools.host_memory import host_zeros
from hicache_dbg.pools.kinds import index_k, mha, mla

GIB = 1 << 30
MAKERS: tuple[Callable[[int], PoolGeometry], ...] = (
    lambda layers: mla(layers, 64),
    lambda layers: mha(layers, 64, heads=8, head_dim=128),
    lambda layers: index_k(layers, 64),
    deepseek_v4_c4,
    deepseek_v4_c128,
)
LAYOUTS = (Layout.LAYER_FIRST, Layout.PAGE_FIRST, Layout.PAGE_FIRST_DIRECT)


def cost(geometry: PoolGeometry, pages: int, layout: Layout) -> tuple[int, int, int]:
    """Return Python's peak memory, the process memory touched (KiB), and the pool's bytes."""
    touched = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        with host_pool_for(geometry, pages, layout) as pool:
            size = pool.nbytes
            peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return peak, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - touched, size


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker(1).name)
def test_opening_a_pool_costs_the_same_however_large_it_is(
    maker: Callable[[int], PoolGeometry], layout: Layout
) -> None:
    """Nothing grows with tokens times layers: the pool's pages are mapped, not touched."""
    small, large = maker(1), maker(61)
    cost(small, 4, layout)  # what Python keeps for itself after a first call
    little, _, size = cost(small, 4, layout)
    pages = 8 * GIB // (large.page_bytes() * large.layers)
    much, touched, large_size = cost(large, pages, layout)
    assert large_size > 500 * size
    # A layer number of the geometry may be an object of its own; nothing else is.
    assert much <= little + 4096
    assert touched < 16 << 10


def test_the_book_of_64_gib_is_at_most_64_bytes_a_page() -> None:
    """The allocator's memory grows with pages, not with tokens or layers."""
    geometry = mla(61, 64)
    pages = 64 * GIB // (geometry.page_bytes() * geometry.layers)
    tracemalloc.start()
    try:
        allocator = PageAllocator(pages, "host")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert allocator.nbytes <= peak <= 64 * pages


def flags_of_the_mapping_at(address: int) -> set[str]:
    """Return the ``VmFlags`` of the mapping that holds ``address``."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    raise AssertionError(f"no mapping holds {address:#x}")


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the kernel has no huge pages"
)
def test_host_memory_gets_huge_pages_where_the_kernel_gives_them_on_request() -> None:
    """The mapping asks for them and is not shared: for shared memory the request is ignored."""
    memory = host_zeros((8 << 20,), torch.uint8)
    flags = flags_of_the_mapping_at(memory.data_ptr())
    assert "hg" in flags
    assert "sh" not in flags
