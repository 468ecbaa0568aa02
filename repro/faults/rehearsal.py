"""A small cache whose readers check every byte: the setup on which faults are rehearsed.

Pages hold bytes unique to their tokens, pool and layer. Sequences that do not fit the device
together take turns, so pages are backed up, evicted and loaded back. The model's kernels run on a
simulated stream; an event orders the engine's copies after them, as on a GPU.
"""

import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from hicache_dbg.pools.allocator import AllocatorError, OutOfPages
from hicache_dbg.pools.controller import HiCacheController, Match
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import IoBackend, Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.host import IndexKHostPool, LatentHostPool
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.kinds import index_k, mla
from hicache_dbg.pools.streams import SimulatedStreams
from hicache_dbg.pools.transfer import TransferError
from hicache_dbg.repro.engine import EnginePlan, device_pools, mirrors
from hicache_dbg.repro.faults.base import Fault, Target, inside
from hicache_dbg.repro.faults.page_table import HostAccess, PageTable
from hicache_dbg.tracer.attach.hicache_streams import Kernel, Touch

__all__ = [
    "DEVICE_PAGES",
    "CacheStage",
    "Rehearsed",
    "plan_of",
    "rehearse",
    "sequence",
    "stamp",
    "tile",
]

PAGE = 4
LAYERS = 3
DEVICE_PAGES, HOST_PAGES = 7, 24
SEQUENCE_PAGES = 4
ROUNDS = 3
Tokens = npt.NDArray[np.int32]


def plan_of(layout: Layout = Layout.PAGE_FIRST) -> EnginePlan:
    """Return an engine plan: latent rows and bf16 index-K, three layers, four tokens per page."""
    return EnginePlan(
        pools=(
            mla(LAYERS, PAGE, torch.uint8, kv_lora_rank=128, rope_dim=2),
            index_k(LAYERS, PAGE, "bf16"),
        ),
        layout=layout,
        io_backend=IoBackend.DIRECT if layout is Layout.PAGE_FIRST_DIRECT else IoBackend.KERNEL,
        host_pages=HOST_PAGES,
        pin=False,
        host_class={"mla": LatentHostPool, "dsa_index_k": IndexKHostPool},
        host_formula={},
    )


@dataclass(slots=True)
class Rehearsed:
    """What the readers observed.

    Attributes:
        pools: the pools under the anchor.
        harmed: pages that the fault says it harmed.
        loads: number of loads executed.
        moved: number of operations that moved pages, in either direction.
        read: number of tiles read back after a load or from another turn.
        wrong: (pool, layer, device page) of tiles that did not hold their bytes.
        first_wrong_ns: when the first of them was read; 0 if none was.
        errors: what the engine refused or reported.
    """

    pools: tuple[str, ...]
    harmed: set[int] = field(default_factory=set)
    loads: int = 0
    moved: int = 0
    read: int = 0
    wrong: list[tuple[str, int, int]] = field(default_factory=list)
    first_wrong_ns: int = 0
    errors: list[str] = field(default_factory=list)

    def bad(self, what: Iterable[tuple[str, int, int]]) -> None:
        """Record wrong tiles, and when the first was seen."""
        for tile in what:
            self.first_wrong_ns = self.first_wrong_ns or time.time_ns()
            self.wrong.append(tile)


def rehearse(
    fault: Fault | None,
    host_access: HostAccess,
    *,
    layout: Layout = Layout.PAGE_FIRST,
    seed: int = 0,
    collective: Callable[[str], None] | None = None,
) -> Rehearsed:
    """Let two sequences take turns on a device that holds one and a half.

    Args:
        fault: the fault to inject, or None.
        host_access: see :data:`HostAccess`.
        layout: layout of the host pools.
        seed: chooses the order in which queued kernels run.
        collective: if this cache is one rank of several, called wherever they synchronize.
    """
    plan = plan_of(layout) if fault is None else fault.apply(plan_of(layout))
    pools = device_pools(plan.pools, DEVICE_PAGES, torch.device("cpu"))
    with closing(PoolGroup(mirrors(plan, pools))) as group:
        controller = HiCacheController(group, io_backend=plan.io_backend)
        stage = CacheStage(controller, SimulatedStreams(seed), host_access)
        target = stage.target
        target.collective = collective or target.collective
        if fault is not None:
            fault.install(target)
        try:
            for _ in range(ROUNDS):
                for name in range(2):
                    stage.turn(sequence(name))
        finally:
            stage.guarded(controller.close)
        stats = controller.stats
        stage.seen.loads, stage.seen.moved = stats.loads, stats.loads + stats.backups
        stage.seen.harmed = target.pages
        return stage.seen


def sequence(name: int) -> Tokens:
    """Return the tokens of one reader; no two readers share any."""
    return np.arange(SEQUENCE_PAGES * PAGE, dtype=np.int32) + 1000 * name


class CacheStage:
    """The engine, the model's stream, and what was observed."""

    def __init__(
        self, controller: HiCacheController, streams: SimulatedStreams, host_access: HostAccess
    ) -> None:
        self.seen = Rehearsed(tuple(controller.group.device))
        self.table = PageTable(DEVICE_PAGES)
        self.target = Target(controller, self.table)
        self._controller = controller
        self._streams = streams
        self._forward = streams.stream("forward")
        self._host_access = host_access
        # Page 0 is for padding, as in many servers, so page ids differ from their ordinal numbers.
        controller.alloc_device(1)
        # As a CUDA engine does by itself: order copies after the kernels queued so far.
        inside(controller).mark = self._forward.record

    def guarded(self, call: Callable[[], object]) -> None:
        """Run ``call``; record what the engine refuses or reports, and go on."""
        try:
            call()
        except (TransferError, AllocatorError, OutOfPages) as error:
            self.seen.errors.append(str(error))

    def turn(self, tokens: Tokens) -> None:
        """Run one reader's turn, then wait until everything queued is done."""
        match = self._controller.match(tokens)
        self.target.collective("all_reduce(hit_pages, min)")
        try:
            self.guarded(lambda: self._through(match, tokens))
        finally:
            self._controller.unlock(match)
        self.guarded(self._controller.flush)
        self._streams.synchronize()
        self.seen.bad(("page_table", 0, row) for row in self.table.wrong)
        self.table.wrong.clear()

    def _through(self, match: Match, tokens: Tokens) -> None:
        controller = self._controller
        try:
            ticket = controller.load_back(match)
            cached = ticket.device_pages
            for layer in range(LAYERS):
                controller.wait_layer(layer, ticket)
                self._read(tokens, cached, layer)
        except OutOfPages:
            cached = match.device_pages
        own = controller.alloc_device(SEQUENCE_PAGES - cached.size)
        pages = np.concatenate([cached, own])
        self._upload(pages)
        self._write(tokens, pages, first=cached.size)
        controller.insert(tokens, pages)

    def _read(self, tokens: Tokens, pages: Ids, layer: int) -> None:
        """Read a layer of cached pages on the model's stream and compare every byte."""
        for pool in self._controller.group.device.values():

            def look(pool: DevicePool = pool) -> None:
                name = pool.geometry.name
                self.seen.read += pages.size
                self.seen.bad(
                    (name, layer, page)
                    for number, page in enumerate(pages.tolist())
                    if not torch.equal(tile(pool, layer, page), stamp(tokens, number, pool, layer))
                )

            touch = Touch(pool, (layer,), pages.tolist(), writes=False)
            self._forward.submit(Kernel(f"read_{pool.geometry.name}", look, (touch,)))
        self._forward.record().synchronize()

    def _write(self, tokens: Tokens, pages: Ids, first: int) -> None:
        """Queue the kernels that write new pages, without waiting for them."""
        new = list(enumerate(pages.tolist()))[first:]
        layers = tuple(range(LAYERS))
        for pool in self._controller.group.device.values():

            def fill(pool: DevicePool = pool) -> None:
                for number, page in new:
                    for layer in layers:
                        tile(pool, layer, page).copy_(stamp(tokens, number, pool, layer))

            touch = Touch(pool, layers, [page for _, page in new], writes=True)
            self._forward.submit(Kernel(f"write_{pool.geometry.name}", fill, (touch,)))

    def _upload(self, pages: Ids) -> None:
        """Upload the page table, then write the next step's into the same buffer."""
        rows = torch.from_numpy(pages.copy())
        for step in (rows, rows.flip(0)):
            self.table.ready()
            self._host_access("write page table", (self.table.write(step),))
            self.table.upload(self._forward, step)


def tile(pool: DevicePool, layer: int, page: int) -> torch.Tensor:
    """Return the bytes of one page of one layer, flat."""
    component = pool.geometry.components[0].name
    return pool.layer(component, layer)[page].view(torch.uint8).view(-1)


def stamp(tokens: Tokens, number: int, pool: DevicePool, layer: int) -> torch.Tensor:
    """Return what a model would compute for page ``number`` of ``tokens``."""
    prefix = tokens[: (number + 1) * PAGE].tobytes()
    seed = zlib.crc32(prefix + f"{pool.geometry.name}/{layer}".encode())
    generator = np.random.default_rng(seed)
    width = tile(pool, layer, 0).numel()
    return torch.from_numpy(generator.integers(0, 256, width, np.uint8))
