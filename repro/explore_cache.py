"""Readers of a small cache on a stage: every byte they read is compared with what was written."""

import zlib
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from hicache_dbg.pools.allocator import OutOfPages
from hicache_dbg.pools.controller import HiCacheController, Match
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import IoBackend, Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.host import IndexKHostPool, LatentHostPool
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.kinds import index_k, mla
from hicache_dbg.pools.transfer import TransferError
from hicache_dbg.repro.engine import EnginePlan, device_pools, mirrors
from hicache_dbg.repro.explore_cases import READERS, Case, Operation
from hicache_dbg.repro.explore_stage import Stage, StageCondition, StageWorker
from hicache_dbg.repro.faults.base import Fault, Target, inside
from hicache_dbg.tracer.attach.hicache_streams import Kernel, Touch

__all__ = ["Readers", "Seen", "plan"]

Tokens = npt.NDArray[np.int32]
Seen = Callable[[str, str], None]
"""Told of what goes wrong in the readers' eyes: who saw it, and what."""

PAGE, LAYERS = 4, 2
DEVICE_PAGES, HOST_PAGES = 8, 10


def plan() -> EnginePlan:
    """Return an engine plan: latent rows and bf16 index-K, two layers, four tokens per page."""
    return EnginePlan(
        pools=(
            mla(LAYERS, PAGE, torch.uint8, kv_lora_rank=128, rope_dim=2),
            index_k(LAYERS, PAGE, "bf16"),
        ),
        layout=Layout.PAGE_FIRST,
        io_backend=IoBackend.KERNEL,
        host_pages=HOST_PAGES,
        pin=False,
        host_class={"mla": LatentHostPool, "dsa_index_k": IndexKHostPool},
        host_formula={},
    )


class Readers:
    """An engine whose threads belong to the stage, and the readers of a case.

    Args:
        stage: runs all threads and streams.
        case: what the readers do.
        fault: the fault to inject, or None.
        seen: see :data:`Seen`.
    """

    def __init__(self, stage: Stage, case: Case, fault: Fault | None, seen: Seen) -> None:
        engine = plan() if fault is None else fault.apply(plan())
        pools = device_pools(engine.pools, DEVICE_PAGES, torch.device("cpu"))
        self._stage = stage
        self._case = case
        self._seen = seen
        self._group = PoolGroup(mirrors(engine, pools))
        self._forward = stage.streams.stream("forward")
        self._controller = HiCacheController(
            self._group, policy=case.policy, io_backend=engine.io_backend
        )
        self._controller.alloc_device(
            1
        )  # page 0 is for padding, so page ids differ from their ordinal numbers
        self._take_over()
        if fault is not None:
            fault.install(Target(self._controller))

    def begin(self) -> None:
        """Start the readers."""
        for reader in range(READERS):
            own = [one for one in self._case.operations if one.reader == reader]
            if own:
                self._stage.act(
                    f"reader {reader}", partial(self._read_all, own, f"reader {reader}")
                )

    def end(self) -> None:
        """Close the engine, once every reader is done."""
        self._stage.act("closing", lambda: self._guarded("closing", self._controller.close))

    def close(self) -> None:
        """Release the memory."""
        self._group.close()

    def _take_over(self) -> None:
        """Replace the engine's threads, locks and streams by the stage's."""
        state = inside(self._controller)
        state.changed = StageCondition(self._stage)  # type: ignore[assignment]
        state.mark = self._forward.record
        for name in ("backup", "load"):
            part = vars(self._controller)[f"_{name}s"]
            part._worker.close()  # noqa: SLF001
            part._worker = StageWorker(f"hicache-{name}", self._stage)  # noqa: SLF001

    def _read_all(self, operations: Iterable[Operation], name: str) -> None:
        for one in operations:
            act = self._turn if one.kind == "turn" else self._drop
            self._guarded(name, partial(act, one))

    def _guarded(self, name: str, call: Callable[[], None]) -> None:
        """Run ``call``; lack of room is not a fault, but any other refusal or report is."""
        try:
            call()
        except OutOfPages:
            return
        except TransferError as error:
            self._seen(name, str(error))

    def _drop(self, one: Operation) -> None:
        self._controller.free_device(self._controller.alloc_device(one.pages))

    def _turn(self, one: Operation) -> None:
        tokens = np.arange(one.pages * PAGE, dtype=np.int32) + 1000 * one.sequence
        match = self._controller.match(tokens)
        try:
            self._through(match, tokens, one.pages)
        finally:
            self._controller.unlock(match)

    def _through(self, match: Match, tokens: Tokens, pages: int) -> None:
        controller = self._controller
        ticket = controller.load_back(match)
        for load in ticket.loads:
            # Safe to replace in a new load, whose gates nobody has waited at yet. Another reader's has
            # been replaced already, and somebody may hold it.
            if not isinstance(load._changed, StageCondition):  # noqa: SLF001
                load._changed = StageCondition(self._stage)  # type: ignore[assignment]  # noqa: SLF001
        cached = ticket.device_pages
        for layer in range(LAYERS):
            controller.wait_layer(layer, ticket)
            self._read(tokens, cached, layer)
        own = controller.alloc_device(pages - cached.size)
        if own.size:
            everything = np.concatenate([cached, own])
            self._write(tokens, everything, first=cached.size)
            controller.insert(tokens, everything)

    def _read(self, tokens: Tokens, pages: Ids, layer: int) -> None:
        """Queue the kernels that read a layer of cached pages; they compare every byte."""
        if not pages.size:
            return
        for pool in self._group.device.values():
            touch = Touch(pool, (layer,), pages.tolist(), writes=False)
            work = partial(self._compare, tokens, pages.tolist(), pool, layer)
            self._forward.submit(Kernel(f"read {pool.geometry.name}", work, (touch,)))

    def _compare(self, tokens: Tokens, pages: list[int], pool: DevicePool, layer: int) -> None:
        for number, page in enumerate(pages):
            if not np.array_equal(_tile(pool, layer, page), _stamp(tokens, number, pool, layer)):
                name = pool.geometry.name
                self._seen("stream forward", f"wrong bytes: {name} layer {layer} page {page}")

    def _write(self, tokens: Tokens, pages: Ids, first: int) -> None:
        """Queue the kernels that write new pages, without waiting for them."""
        new = list(enumerate(pages.tolist()))[first:]
        layers = tuple(range(LAYERS))
        for pool in self._group.device.values():

            def fill(pool: DevicePool = pool) -> None:
                for number, page in new:
                    for layer in layers:
                        _tile(pool, layer, page)[:] = _stamp(tokens, number, pool, layer)

            touch = Touch(pool, layers, [page for _, page in new], writes=True)
            self._forward.submit(Kernel(f"write {pool.geometry.name}", fill, (touch,)))


def _tile(pool: DevicePool, layer: int, page: int) -> npt.NDArray[np.uint8]:
    """Return the bytes of one page of one layer, flat."""
    component = pool.geometry.components[0].name
    return pool.layer(component, layer)[page].view(torch.uint8).view(-1).numpy()


def _stamp(tokens: Tokens, number: int, pool: DevicePool, layer: int) -> npt.NDArray[np.uint8]:
    """Return the bytes for page ``number`` of ``tokens``, different from those of any other tile."""
    prefix = tokens[: (number + 1) * PAGE].tobytes()
    seed = zlib.crc32(prefix + f"{pool.geometry.name}/{layer}".encode())
    width = _tile(pool, layer, 0).size
    return (
        (np.arange(width, dtype=np.uint32) * 2654435761 + seed)
        .astype(np.uint32)
        .view(np.uint8)[:width]
    )
