"""Bytes that change at rest, with nobody writing."""

from collections.abc import Callable

import torch

from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.state import CacheState
from hicache_dbg.repro.faults.base import Fault, Target, inside, sidecar
from hicache_dbg.repro.faults.places import put
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULTS"]


def _flipped(which: Callable[[Target], int], bits: int) -> Callable[[Target], None]:
    """One byte of the first host page of each backup changes after it has been acknowledged.

    Of its last layer: a load's digests are judged when all of it has come, before that layer is read.
    """

    def install(target: Target) -> None:
        state = inside(target.controller)
        pool = target.controller.group.mirrors[which(target)].host
        buffer = next(iter(pool.buffers.values()))
        memory = buffer.tensors[-1].view(torch.uint8)
        seen: set[int] = set()

        def end(host: Ids, device: Ids) -> None:
            CacheState.end(state, host, device)
            page = int(host[0])
            if page in seen:
                return  # a load, or a second backup: it was flipped once
            seen.add(page)
            at = [0] * memory.ndim
            at[buffer.dims.index("page")] = page
            if "layer" in buffer.dims:
                at[buffer.dims.index("layer")] = -1
            memory[tuple(at)] ^= bits
            target.harmed([page])

        put(state, "end", end)

    return install


FAULTS = (
    Fault(
        name="bit_flips_in_index_k",
        cls=FaultClass.BIT_FLIP,
        summary="one bit of a resting host page of index-K changes",
        install=_flipped(sidecar, 0x01),
        pools=("dsa_index_k",),
    ),
    Fault(
        name="byte_stuck_in_latent",
        cls=FaultClass.BIT_FLIP,
        summary="all bits of one byte of a resting latent page change",
        install=_flipped(lambda _: 0, 0xFF),
        pools=("mla",),
    ),
)
