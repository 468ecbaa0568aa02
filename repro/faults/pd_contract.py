"""Prefill and decode that do not mean the same bytes, or not the same number of them."""

from dataclasses import replace

from hicache_dbg.pools.kinds import index_k
from hicache_dbg.repro.config import ConfigError
from hicache_dbg.repro.engine import EnginePlan
from hicache_dbg.repro.faults.base import Fault, Parcel, Target
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULTS"]


def _fp8_at_decode(plan: EnginePlan) -> EnginePlan:
    """Decode was started with another dtype for its index."""
    anchor, *others = plan.pools
    if not others or others[0].name != "dsa_index_k":
        raise ConfigError("this fault is in the index-K; use pools mla_index_k")
    index = index_k(others[0].layers, others[0].slots_per_page, "fp8")
    return replace(plan, pools=(anchor, index))


def _last_page_not_taken(target: Target) -> None:
    """Decode counts the prompt without its last token, and takes a page less."""
    target.handed = lambda _request, pages: (pages - 1, "complete")


def _layers_swapped(target: Target) -> None:
    """The wire's order of layers is taken for another one, in one pool."""
    kept: dict[tuple[str, int], bytes] = {}
    last = target.controller.group.mirrors[-1].name

    def wire(parcel: Parcel) -> bytes | None:
        if parcel.pool != last:
            return parcel.payload
        return kept.setdefault((parcel.request, parcel.page), parcel.payload)

    target.wire = wire


def _lost_and_committed(target: Target) -> None:
    """A write of one tile fails on the way, and decode goes on with what its page held."""
    anchor = target.controller.group.mirrors[0]
    lost = anchor.name, anchor.device.geometry.layer_ids[1], 2

    def wire(parcel: Parcel) -> bytes | None:
        return None if (parcel.pool, parcel.layer, parcel.page) == lost else parcel.payload

    target.wire = wire


def _truncated(target: Target) -> None:
    """Only the first half of one tile arrives."""
    last = target.controller.group.mirrors[-1]
    cut = last.name, last.device.geometry.layer_ids[-1], 1

    def wire(parcel: Parcel) -> bytes | None:
        one = (parcel.pool, parcel.layer, parcel.page) == cut
        return parcel.payload[: len(parcel.payload) // 2] if one else parcel.payload

    target.wire = wire


FAULTS = (
    Fault(
        name="decode_has_fp8_index_k",
        cls=FaultClass.PD_CONTRACT,
        summary="prefill stores index-K in bf16 and decode in fp8",
        apply=_fp8_at_decode,
        stage="handover",
        pools=("dsa_index_k",),
    ),
    Fault(
        name="decode_takes_a_page_less",
        cls=FaultClass.PD_CONTRACT,
        summary="decode counts one page less than prefill hands over",
        install=_last_page_not_taken,
        stage="handover",
    ),
    Fault(
        name="layers_mixed_up_on_the_wire",
        cls=FaultClass.PD_CONTRACT,
        summary="the index-K of every layer arrives as that of the first",
        install=_layers_swapped,
        stage="handover",
        pools=("dsa_index_k",),
    ),
    Fault(
        name="tile_lost_on_the_wire",
        cls=FaultClass.PD_CONTRACT,
        summary="one tile never arrives, and decode reads what its page held before",
        install=_lost_and_committed,
        stage="handover",
        pools=("mla",),
    ),
    Fault(
        name="tile_cut_short_on_the_wire",
        cls=FaultClass.PD_CONTRACT,
        summary="only half of one tile arrives, and decode reads the rest of what its page held before",
        install=_truncated,
        stage="handover",
        pools=("dsa_index_k",),
    ),
)
