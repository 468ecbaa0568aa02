"""Fault-free traffic over every pool, layout, io backend and write policy: any finding is false.

Readers without a model: pages get random bytes and are backed up, evicted and loaded back as turns
come and go, and what kernels would touch is reported. A case is one combination.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle, product
from math import prod
from random import Random
from types import MappingProxyType
from typing import get_args

import numpy as np
import torch

from hicache_dbg.pools.allocator import OutOfPages
from hicache_dbg.pools.backups import WritePolicy
from hicache_dbg.pools.controller import HiCacheController, Match
from hicache_dbg.pools.deepseek_v4 import deepseek_v4_pools
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import IoBackend, Layout, PoolGeometry
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.host import host_geometry_like, host_pool_for
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.kinds import index_k, mha, mla
from hicache_dbg.pools.radix_types import Policy
from hicache_dbg.pools.validate import LAYOUTS_OF
from hicache_dbg.repro.kernels import ToldKernels

__all__ = ["CASES", "SoakCase", "soak"]

LAYERS = 24
SEQUENCES, MOST_PAGES = 12, 12
DEVICE_PAGES, HOST_PAGES = 40, 90
#: Most bytes that a turn writes into one tensor.
MOST_BYTES = 1 << 20

#: The pools of each group, the anchor first.
GROUPS: Mapping[str, tuple[PoolGeometry, ...]] = MappingProxyType(
    {
        "mla, index-K bf16": (mla(LAYERS, 4), index_k(LAYERS, 4, "bf16")),
        "mla fp8, index-K fp8": (mla(LAYERS, 4, torch.uint8), index_k(LAYERS, 4, "fp8")),
        "mha": (mha(LAYERS, 4, 2, 32),),
        "deepseek_v4": deepseek_v4_pools(
            swa_layers=range(8),
            c4_layers=range(8, 16),
            c128_layers=range(16, LAYERS),
            page_size=128,
            indexer_state=True,
        ),
    }
)


@dataclass(frozen=True, slots=True)
class SoakCase:
    """A combination of the options an engine can be built with."""

    group: str
    layout: Layout
    io_backend: IoBackend
    policy: WritePolicy
    eviction: Policy

    def __str__(self) -> str:
        parts = self.group, self.layout, self.io_backend, self.policy, self.eviction
        return " | ".join(parts)


def _cases() -> Iterator[SoakCase]:
    evictions = cycle(get_args(Policy))
    for group, (backend, layouts), policy in product(
        GROUPS, LAYOUTS_OF.items(), get_args(WritePolicy)
    ):
        for layout in layouts:
            if _fits(group, layout):
                yield SoakCase(group, layout, backend, policy, next(evictions))


def _fits(group: str, layout: Layout) -> bool:
    """Return whether the host classes of all pools in the group support ``layout``."""
    device = [DevicePool(geometry, 1) for geometry in GROUPS[group]]
    classes = [
        type(host_pool_for(host_geometry_like(pool), 1, Layout.LAYER_FIRST)) for pool in device
    ]
    return all(layout in cls.layouts for cls in classes)


CASES = tuple(_cases())
"""Every group in every layout that its pools can have, with each io backend that serves it and each
write policy; the eviction policies take turns."""


def soak(case: SoakCase, turns: int, seed: int = 0) -> None:
    """Run ``turns`` turns of one reader through a cache that is too small for their sequences."""
    random = Random(seed)  # noqa: S311 (turns to take, not secrets)
    group = PoolGroup.build(
        GROUPS[case.group],
        device_pages=DEVICE_PAGES,
        host_pages=HOST_PAGES,
        layout=case.layout,
    )
    with (
        closing(group),
        HiCacheController(
            group, policy=case.policy, eviction=case.eviction, io_backend=case.io_backend
        ) as controller,
    ):
        reader = _Reader(controller, random)
        for _ in range(turns):
            reader.turn(random.randrange(SEQUENCES), random.randint(1, MOST_PAGES))


class _Reader:
    def __init__(self, controller: HiCacheController, random: Random) -> None:
        self._controller = controller
        self._kernels = ToldKernels(controller)
        self._random = random
        self._noise = torch.frombuffer(
            bytearray(random.randbytes(2 * MOST_BYTES)), dtype=torch.uint8
        )
        self._layers = controller.group.layer_ids
        self._page_tokens = controller.group.page_tokens

    def turn(self, sequence: int, pages: int) -> None:
        """Read what is cached of the first pages of a sequence, write the rest, and cache it."""
        tokens = np.arange(pages * self._page_tokens, dtype=np.int32) + 100_000 * sequence
        match = self._controller.match(tokens)
        try:
            cached = self._read(match)
            own = self._controller.alloc_device(pages - cached.size)
            if own.size:
                self._write(own)
                self._controller.insert(tokens, np.concatenate((cached, own)))
        except OutOfPages:  # copies in flight hold the rest: the next turn may find room
            pass
        finally:
            self._controller.unlock(match)

    def _read(self, match: Match) -> Ids:
        ticket = self._controller.load_back(match)
        for layer in self._layers:
            self._controller.wait_layer(layer, ticket)
            self._kernels.read(layer, ticket.device_pages)
        return ticket.device_pages

    def _write(self, pages: Ids) -> None:
        """Write random bytes to every layer of every pool."""
        into = torch.from_numpy(pages)
        for pool in self._controller.group.device.values():
            for buffer in pool.buffers.values():
                axis = buffer.dims.index("page")
                for tensor in buffer.tensors:
                    raw = tensor.view(torch.uint8)
                    shape = [*raw.shape[:axis], pages.size, *raw.shape[axis + 1 :]]
                    raw.index_copy_(axis, into, self._fresh(prod(shape)).view(shape))
        self._kernels.write(pages)

    def _fresh(self, count: int) -> torch.Tensor:
        """Return ``count`` bytes from a random offset of the noise."""
        start = self._random.randrange(MOST_BYTES)
        return self._noise[start : start + count]
