"""Backups that read their source before the kernels that write it are done."""

from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.transfer import CopyOp
from hicache_dbg.repro.faults.base import Fault, Target, inside
from hicache_dbg.repro.faults.places import after_begin
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULTS"]


def _no_wait(target: Target) -> None:
    """The copy's stream never waits for the model's."""

    def change(op: CopyOp, _host: Ids, device: Ids) -> None:
        op.after = None
        target.harmed(device)

    after_begin(target, "backup", change)


def _event_of_the_step_before(target: Target) -> None:
    """The event is recorded at the start of the step: before the kernels that it should stand for."""
    stale = inside(target.controller).mark()

    def change(op: CopyOp, _host: Ids, device: Ids) -> None:
        op.after = stale
        target.harmed(device)

    after_begin(target, "backup", change)


FAULTS = (
    Fault(
        name="backup_without_a_wait",
        cls=FaultClass.STORE_BEFORE_WRITE,
        summary="a backup does not wait for the kernels that write its pages",
        install=_no_wait,
    ),
    Fault(
        name="backup_waits_for_an_older_event",
        cls=FaultClass.STORE_BEFORE_WRITE,
        summary="a backup waits for an event that was recorded before its pages were written",
        install=_event_of_the_step_before,
    ),
)
