"""Prefill and decode, where decode abandons a request while its pages are still being written.

Normally its pages are held until the write is over. With the fault, they go to the next request at
once.
"""

from contextlib import closing

import torch

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.repro.engine import device_pools, mirrors
from hicache_dbg.repro.faults.base import Fault, Target
from hicache_dbg.repro.faults.handover import NOT_TAKEN, Sent, arrive, read, state
from hicache_dbg.repro.faults.rehearsal import SEQUENCE_PAGES, Rehearsed, plan_of
from hicache_dbg.tracer.events import FaultClass, Topic
from hicache_dbg.tracer.session import Session

__all__ = ["FAULTS", "GIVEN_UP", "decode"]

#: The request that decode abandons, and the next one that gets its pages.
GIVEN_UP, NEXT = "r1", "r0"


def decode(
    session: Session, sent: Sent, fault: Fault | None, layout: Layout = Layout.PAGE_FIRST
) -> Rehearsed:
    """Abandon one request half way, take over the next, and read it when the rest has landed."""
    plan = plan_of(layout)
    pools = device_pools(plan.pools, 2 * SEQUENCE_PAGES, torch.device("cpu"))
    with (
        closing(PoolGroup(mirrors(plan, pools))) as group,
        HiCacheController(group, io_backend=plan.io_backend) as controller,
    ):
        target, seen = Target(controller), Rehearsed(tuple(group.device))
        if fault is not None:
            fault.install(target)
        unwanted = controller.alloc_device(SEQUENCE_PAGES)
        parcels = [parcel for parcel in sent.parcels if parcel.request == GIVEN_UP]
        half = len(parcels) // 2
        for parcel in parcels[:half]:
            arrive(target, parcel, int(unwanted[parcel.page]), seen)
        count = f"{SEQUENCE_PAGES}"
        session.state(Topic.RECEIVED, (count, NOT_TAKEN), role="decode", request=GIVEN_UP)
        if not target.holds_given_up:
            controller.free_device(unwanted)
        pages = controller.alloc_device(SEQUENCE_PAGES)
        for parcel in sent.parcels:
            if parcel.request == NEXT:
                arrive(target, parcel, int(pages[parcel.page]), seen)
        for parcel in parcels[half:]:
            arrive(target, parcel, int(unwanted[parcel.page]), seen)
        handed = sent.handed[NEXT]
        state(session, "decode", Topic.RECEIVED, controller, NEXT, pages, handed)
        read(controller, int(NEXT[1:]), pages, seen)
        controller.free_device(pages)
        if target.holds_given_up:
            controller.free_device(unwanted)
        return seen


def _freed_at_once(target: Target) -> None:
    """Decode treats an abandoned request as finished and frees its pages."""
    target.holds_given_up = False


FAULTS = (
    Fault(
        name="given_up_write_lands_late",
        cls=FaultClass.SLOT_REUSE,
        summary="decode gives a request's pages to the next one while its write is still landing",
        install=_freed_at_once,
        stage="aborts",
    ),
)
