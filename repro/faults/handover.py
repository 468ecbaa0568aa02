"""Two engines in one process: prefill computes pages and hands their bytes over to decode.

Each end has its own pools, pages and allocator; only bytes cross, tile by tile. Decode reads every
byte it was given.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field

import torch

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.indices import Ids
from hicache_dbg.repro.engine import device_pools, mirrors
from hicache_dbg.repro.faults.base import Fault, Parcel, Target
from hicache_dbg.repro.faults.rehearsal import (
    DEVICE_PAGES,
    LAYERS,
    SEQUENCE_PAGES,
    Rehearsed,
    plan_of,
    sequence,
    stamp,
    tile,
)
from hicache_dbg.tracer.attach.hicache_views import mirror_views
from hicache_dbg.tracer.digest.tiles import TileDigester
from hicache_dbg.tracer.events import Topic
from hicache_dbg.tracer.session import Session

__all__ = ["NOT_TAKEN", "Sent", "arrive", "decode", "prefill", "read", "state"]

REQUESTS = 2
#: The status that both ends state for an abandoned request.
NOT_TAKEN = "not taken over"


@dataclass(slots=True)
class Sent:
    """What prefill has put on the wire: tiles, and a status per request."""

    parcels: list[Parcel] = field(default_factory=list)
    handed: dict[str, tuple[int, str]] = field(default_factory=dict)


def prefill(session: Session, layout: Layout = Layout.PAGE_FIRST, *, given_up: str = "") -> Sent:
    """Compute every request's pages and read their bytes for the wire; decode abandons one."""
    sent, plan = Sent(), plan_of(layout)
    pools = device_pools(plan.pools, DEVICE_PAGES, torch.device("cpu"))
    with (
        closing(PoolGroup(mirrors(plan, pools))) as group,
        HiCacheController(group, io_backend=plan.io_backend) as controller,
    ):
        for number in range(REQUESTS):
            request, tokens = f"r{number}", sequence(number)
            pages = controller.alloc_device(SEQUENCE_PAGES)
            for pool in group.device.values():
                for layer in range(LAYERS):
                    for at, page in enumerate(pages.tolist()):
                        bytes_of = tile(pool, layer, page)
                        bytes_of.copy_(stamp(tokens, at, pool, layer))
                        sent.parcels.append(
                            Parcel(
                                request, pool.geometry.name, layer, at, bytes_of.numpy().tobytes()
                            )
                        )
            sent.handed[request] = len(pages), NOT_TAKEN if request == given_up else "complete"
            state(session, "prefill", Topic.SENT, controller, request, pages, sent.handed[request])
            controller.free_device(pages)
    return sent


def decode(
    session: Session, sent: Sent, fault: Fault | None, layout: Layout = Layout.PAGE_FIRST
) -> Rehearsed:
    """Take over and read every request; ``fault`` is at this end, or on the way to it."""
    plan = plan_of(layout) if fault is None else fault.apply(plan_of(layout))
    pools = device_pools(plan.pools, DEVICE_PAGES, torch.device("cpu"))
    with (
        closing(PoolGroup(mirrors(plan, pools))) as group,
        HiCacheController(group, io_backend=plan.io_backend) as controller,
    ):
        target, seen = Target(controller), Rehearsed(tuple(group.device))
        if fault is not None:
            fault.install(target)
        for number, (request, handed) in enumerate(sent.handed.items()):
            count, status = target.handed(request, handed[0])
            pages = controller.alloc_device(count)
            for parcel in sent.parcels:
                if parcel.request == request and parcel.page < count:
                    arrive(target, parcel, int(pages[parcel.page]), seen)
            took = count, status
            state(session, "decode", Topic.RECEIVED, controller, request, pages, took)
            read(controller, number, pages, seen)
            controller.free_device(pages)
        seen.harmed = target.pages
        return seen


def arrive(target: Target, parcel: Parcel, page: int, seen: Rehearsed) -> None:
    """Write what came through the wire to this end's tile."""
    payload = target.wire(parcel)
    if payload is None:
        return
    place = tile(target.controller.group.device[parcel.pool], parcel.layer, page)
    data = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    size = min(data.numel(), place.numel())
    place[:size] = data[:size]
    seen.loads += 1
    seen.moved += 1


def read(controller: HiCacheController, number: int, pages: Ids, seen: Rehearsed) -> None:
    """Compare every tile of a sequence with what prefill computed."""
    tokens = sequence(number)
    for name, pool in controller.group.device.items():
        for layer in range(LAYERS):
            for at in range(SEQUENCE_PAGES):
                seen.read += 1
                there = at < len(pages)
                wanted = stamp(tokens, at, pool, layer)
                if not there or not torch.equal(tile(pool, layer, int(pages[at])), wanted):
                    seen.bad([(name, layer, at)])


def state(  # noqa: PLR0917
    session: Session,
    role: str,
    topic: Topic,
    controller: HiCacheController,
    request: str,
    pages: Ids,
    handed: Sequence[object],
) -> None:
    """State how many pages there are, and the digest of each of their tiles at this end."""
    session.state(topic, tuple(map(str, handed)), role=role, request=request)
    digester = TileDigester()
    for mirror in controller.group.mirrors:
        layers = mirror.device.geometry.layer_ids
        for component, view in mirror_views(mirror, None).device.items():
            digests = digester.digest(view, tuple(range(view.layers)), pages)
            for at in range(len(pages)):
                session.state(
                    Topic.TILES,
                    [f"{digest:016x}" for digest in digests[:, at].tolist()],
                    role=role,
                    request=request,
                    pool=mirror.name,
                    component=component,
                    page=at,
                    layers=layers,
                )
