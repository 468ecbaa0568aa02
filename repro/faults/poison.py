"""Destinations filled with a known byte before each copy: what still has it was never written.

For our own engine and its tests: a page that is being loaded is nobody's to read until its gates
open, so its bytes may be anything before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from hicache_dbg.pools.buffer import Buffer
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.host import HostPool
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.transfer import CopyOp, TransferEngine
from hicache_dbg.repro.faults.base import inside
from hicache_dbg.repro.faults.places import put
from hicache_dbg.tracer.checks.slots import ranges

__all__ = ["POISON", "Unwritten", "poisoned"]

POISON = 0xA5
LayerDone = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Unwritten:
    """Slots of a page that a copy should have written and did not; a page-indexed one as a whole."""

    op: str
    pool: str
    component: str
    layer: int
    page: int
    slots: str


def poisoned(controller: HiCacheController) -> list[Unwritten]:
    """Poison the destination of every copy from now on; what was never written is appended.

    To be called after a fault was installed, so that what the fault leaves out is looked at too.
    """
    state, found = inside(controller), list[Unwritten]()
    begin, engine = state.begin, state.engine
    asked: dict[int, Ids] = {}

    def note(kind: Literal["backup", "load"], host: Ids, device: Ids) -> CopyOp:
        op = begin(kind, host, device)
        asked[id(op)] = (device if kind == "load" else host).copy()
        return op

    class Poisoning(TransferEngine):
        """The engine that was there, with destinations that are poisoned first."""

        def backup(self, op: CopyOp) -> None:
            """Poison host pages, and look at them afterwards."""
            pools, pages = controller.group.host, asked.pop(id(op))
            _fill(pools, pages)
            engine.backup(op)
            found.extend(_left(pools, pages, "backup"))

        def load(self, op: CopyOp, on_layer_done: LayerDone) -> None:
            """Poison device pages, and look at them when the last layer is there."""
            pools, pages = controller.group.device, asked.pop(id(op))
            last = controller.group.layer_ids[-1]
            _fill(pools, pages)

            def layer_done(layer: int) -> None:
                if layer == last:  # before its gate opens: nobody has written after the copy
                    found.extend(_left(pools, pages, "load"))
                on_layer_done(layer)

            engine.load(op, layer_done)

    put(state, "begin", note)
    state.engine = Poisoning()
    return found


def _fill(pools: dict[str, DevicePool] | dict[str, HostPool], pages: Ids) -> None:
    for pool in pools.values():
        for buffer in pool.buffers.values():
            for tensor in buffer.tensors:
                where = tensor.view(torch.uint8)
                for page in pages.tolist():
                    where.select(buffer.dims.index("page"), page).fill_(POISON)


def _left(
    pools: dict[str, DevicePool] | dict[str, HostPool], pages: Ids, op: str
) -> list[Unwritten]:
    return [
        Unwritten(op, name, component, layer, page, slots)
        for name, pool in pools.items()
        for component, buffer in pool.buffers.items()
        for layer in range(buffer.layers)
        for page in pages.tolist()
        if (slots := _poison_in(buffer, layer, page))
    ]


def _poison_in(buffer: Buffer, layer: int, page: int) -> str:
    """Slots of a tile that have the poison in every byte."""
    dims = list(buffer.dims)
    tensor = buffer.tensors[0 if "layer" in dims else layer].view(torch.uint8)
    for axis, at in (("layer", layer), ("page", page)):
        if axis in dims:
            tensor = tensor.select(dims.index(axis), at)
            dims.remove(axis)
    whole = tensor == POISON
    if "slot" not in dims:
        return "all" if bool(whole.all()) else ""
    slots = whole.movedim(dims.index("slot"), 0).flatten(1).all(1)
    return ranges(torch.nonzero(slots).flatten().tolist())
