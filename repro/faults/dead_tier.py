"""Tiers that take and never give, and copies that quietly go the long way."""

from dataclasses import replace

from hicache_dbg.pools.controller import HiCacheController, Match
from hicache_dbg.pools.geometry import IoBackend, Layout
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.radix_types import Tokens
from hicache_dbg.pools.ticket import LoadTicket
from hicache_dbg.pools.transfer import CopyOp
from hicache_dbg.repro.config import ConfigError
from hicache_dbg.repro.engine import EnginePlan
from hicache_dbg.repro.faults.base import Fault, Target
from hicache_dbg.repro.faults.places import after_begin, put
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULTS"]


def _host_hits_dropped(target: Target) -> None:
    """What is on the host only counts as missing: every read fails before it begins, and looks like a miss."""
    controller = target.controller

    def match(tokens: Tokens) -> Match:
        found = HiCacheController.match(controller, tokens)
        found.pages, found.host_pages = found.device_pages.size, found.host_pages[:0]
        found.ticket = LoadTicket(found.device_pages, ())
        return found

    put(controller, "match", match)


def _in_layers(plan: EnginePlan) -> EnginePlan:
    """The one layout that both io backends can serve."""
    if plan.io_backend is not IoBackend.KERNEL:
        raise ConfigError(
            f"this fault leaves the kernel path, and io_backend is {plan.io_backend}; use kernel"
        )
    return replace(plan, layout=Layout.LAYER_FIRST)


def _fallback(target: Target) -> None:
    """A width that the kernel was not built for: the copy falls back, and nobody is told."""

    def change(op: CopyOp, _host: Ids, _device: Ids) -> None:
        op.copies = (replace(op.copies[0], io_backend=IoBackend.DIRECT), *op.copies[1:])

    after_begin(target, "load", change)


FAULTS = (
    Fault(
        name="host_hits_dropped",
        cls=FaultClass.DEAD_TIER,
        summary="pages go to the host and none ever comes back: each hit there ends as a miss",
        install=_host_hits_dropped,
    ),
    Fault(
        name="loads_fall_back_to_single_copies",
        cls=FaultClass.DEAD_TIER,
        summary="loads of the anchor leave the chosen io backend for a slower one, and nobody is told",
        apply=_in_layers,
        install=_fallback,
        pools=("mla",),
    ),
)
