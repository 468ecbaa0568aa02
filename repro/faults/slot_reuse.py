"""Pages that are given away while a copy still has them."""

from collections.abc import Callable
from typing import Literal

from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.transfer import CopyOp
from hicache_dbg.repro.faults.base import Fault, Target, inside
from hicache_dbg.repro.faults.places import OTHER_OWNER, after_begin, overwrite
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULTS"]


def _given_away_under(
    kind: Literal["backup", "load"], tier: Literal["host", "device"]
) -> Callable[[Target], None]:
    """The first operation of ``kind`` holds its pages at one end only.

    The other's go to another owner.
    """

    def install(target: Target) -> None:
        state, group = inside(target.controller), target.controller.group
        allocator = state.host if tier == "host" else state.device
        pools = group.host.values() if tier == "host" else group.device.values()

        def change(op: CopyOp, host: Ids, device: Ids) -> None:
            if target.pages:
                return
            if op.after is not None:
                op.after.synchronize()  # the old owner's kernels are done by then
            pages = host if tier == "host" else device
            allocator.release(pages)  # nobody holds them through the copy
            allocator.free(pages)  # an eviction, or the end of the request
            given = allocator.alloc(pages.size, OTHER_OWNER)  # the latest freed go first
            overwrite(pools, given)
            allocator.acquire(given)  # what the engine's own acknowledgement will release
            target.harmed(pages)

        after_begin(target, kind, change)

    return install


FAULTS = (
    Fault(
        name="host_page_evicted_under_load",
        cls=FaultClass.SLOT_REUSE,
        summary="a load locks its device pages only; the host pages are evicted and reused under it",
        install=_given_away_under("load", "host"),
    ),
    Fault(
        name="device_page_freed_at_first_offload",
        cls=FaultClass.SLOT_REUSE,
        summary="device pages are freed when their backup is submitted, and reused before it ends",
        install=_given_away_under("backup", "device"),
    ),
)
