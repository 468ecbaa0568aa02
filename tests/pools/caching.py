"""A small cache whose pages hold bytes that are unique to their tokens."""

import numpy as np
import numpy.typing as npt
import torch

from hicache_dbg.pools.allocator import OutOfPages
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.kinds import index_k, mla

P = 4
LAYERS = 3
Tokens = npt.NDArray[np.int32]
Pages = npt.NDArray[np.int64]


def group_of(
    device_pages: int = 8,
    host_pages: int = 32,
    layout: Layout = Layout.PAGE_FIRST,
    device: str = "cpu",
) -> PoolGroup:
    """Return a small latent pool with its index-K sidecar."""
    return PoolGroup.build(
        [
            mla(LAYERS, P, torch.uint8, kv_lora_rank=128, rope_dim=2),
            index_k(LAYERS, P, "fp8"),
        ],
        device_pages=device_pages,
        host_pages=host_pages,
        layout=layout,
        device=device,
    )


def stamp(prefix: Tokens, layer: int, width: int) -> torch.Tensor:
    """Return bytes unique to this prefix and layer: what a model would compute for its last page."""
    seed = hash((prefix.tobytes(), layer, width)) % 2**63
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (width,), dtype=torch.uint8, generator=generator)


def page_of(group: PoolGroup, name: str, layer: int, page: int) -> torch.Tensor:
    """Return one page of one layer of a device pool, flat."""
    pool = group.device[name]
    return pool.layer(pool.geometry.components[0].name, layer)[page].view(-1)


def write(group: PoolGroup, tokens: Tokens, pages: Pages, first: int = 0) -> None:
    """Write the stamp of every page of ``tokens`` from page number ``first`` on."""
    for number in range(first, pages.size):
        for name in group.device:
            for layer in range(LAYERS):
                target = page_of(group, name, layer, int(pages[number]))
                target.copy_(stamp(tokens[: (number + 1) * P], layer, target.numel()))


def wrong_pages(
    group: PoolGroup, tokens: Tokens, pages: Pages, layer: int
) -> list[tuple[str, int]]:
    """Return the pools and pages of ``layer`` that do not hold their stamp."""
    found = []
    for number, page in enumerate(pages.tolist()):
        for name in group.device:
            got = page_of(group, name, layer, page)
            if not torch.equal(got, stamp(tokens[: (number + 1) * P], layer, got.numel())):
                found.append((name, number))
    return found


def turn(controller: HiCacheController, tokens: Tokens) -> None:
    """Take one reader's turn: match, load, read behind the gates, compute the rest, insert."""
    match = controller.match(tokens)
    pages = np.empty(0, dtype=np.int64)
    total = tokens.size // P
    try:
        try:
            ticket = controller.load_back(match)
            cached = ticket.device_pages
            for layer in range(LAYERS):
                controller.wait_layer(layer, ticket)
                assert wrong_pages(controller.group, tokens, cached, layer) == []
        except OutOfPages:
            cached = match.device_pages
        pages = controller.alloc_device(total - cached.size)
        whole = np.concatenate([cached, pages])
        write(controller.group, tokens, whole, first=cached.size)
        for layer in range(LAYERS):
            assert wrong_pages(controller.group, tokens, whole, layer) == []
        controller.insert(tokens, whole)
    finally:
        controller.unlock(match)


def sequences(choices: list[list[int]]) -> list[Tokens]:
    """Return token sequences that share prefixes: each choice picks the next page."""
    return [
        np.concatenate([np.arange(P, dtype=np.int32) + 100 * page for page in pages])
        for pages in choices
    ]


def accounted(controller: HiCacheController) -> None:
    """Check that without readers and copies exactly the cached pages are taken, and none is held."""
    tree = controller.tree.stats
    for tier, cached in (("device", tree.device_pages), ("host", tree.host_pages)):
        allocator = controller.allocators[tier]
        assert allocator.pages - allocator.available == cached
        assert not allocator.readers(np.arange(allocator.pages)).any()
    assert controller.tree.root.holds == 0
