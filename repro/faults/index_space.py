"""Indices that mean something else than the pool takes them for."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hicache_dbg.pools.indices import Ids, Indices
from hicache_dbg.pools.transfer import CopyOp
from hicache_dbg.repro.faults.base import Fault, Target, sidecar
from hicache_dbg.repro.faults.places import after_begin
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULTS"]


def _sidecar_loads_with(
    translate: Callable[[Target, Ids], Ids],
) -> Callable[[Target], None]:
    """The sidecar's device pages go through a translation of their own."""

    def install(target: Target) -> None:
        sidecar(target)

        def change(op: CopyOp, host: Ids, device: Ids) -> None:
            anchor, second = op.copies[:2]
            wrong = translate(target, device)
            indices = Indices.pages(wrong, second.mirror.device.geometry)
            op.copies = (anchor, replace(second, device=indices), *op.copies[2:])
            target.harmed(host[wrong != device])

        after_begin(target, "load", change)

    return install


def _logical(_target: Target, device: Ids) -> Ids:
    """The position in the request, taken for the page it lies in."""
    return np.arange(device.size, dtype=np.int64)


def _tokens(target: Target, device: Ids) -> Ids:
    """The page's first token, taken for the page."""
    return device * target.controller.group.page_tokens


FAULTS = (
    Fault(
        name="sidecar_given_logical_pages",
        cls=FaultClass.INDEX_SPACE,
        summary="loads of index-K go to the logical page numbers, and overwrite others' pages",
        install=_sidecar_loads_with(_logical),
        pools=("dsa_index_k",),
    ),
    Fault(
        name="sidecar_given_tokens_for_pages",
        cls=FaultClass.INDEX_SPACE,
        summary="loads of index-K are given token numbers where pages belong; most are out of range",
        install=_sidecar_loads_with(_tokens),
        pools=("dsa_index_k",),
    ),
)
