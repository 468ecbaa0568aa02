"""State that belongs to a page and is not carried with it."""

from collections.abc import Callable
from typing import Literal

from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.transfer import CopyOp
from hicache_dbg.repro.faults.base import Fault, Target, sidecar
from hicache_dbg.repro.faults.places import after_begin
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULTS"]


def _anchor_alone(kind: Literal["backup", "load"]) -> Callable[[Target], None]:
    """An operation that was written before the pool had sidecars moves the anchor only."""

    def install(target: Target) -> None:
        sidecar(target)

        def change(op: CopyOp, host: Ids, device: Ids) -> None:
            op.copies = op.copies[:1]
            target.harmed(host if kind == "backup" else device)

        after_begin(target, kind, change)

    return install


FAULTS = (
    Fault(
        name="sidecar_not_backed_up",
        cls=FaultClass.SIDECAR_MISSING,
        summary="a backup moves the anchor's pages and leaves index-K behind",
        install=_anchor_alone("backup"),
        pools=("dsa_index_k",),
    ),
    Fault(
        name="sidecar_not_loaded",
        cls=FaultClass.SIDECAR_MISSING,
        summary="index-K is backed up, but a load brings the anchor's pages only",
        install=_anchor_alone("load"),
        pools=("dsa_index_k",),
    ),
)
