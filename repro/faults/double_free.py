"""Pages and pins that are given back twice, or never."""

from contextlib import suppress

from hicache_dbg.pools.allocator import AllocatorError, PageAllocator
from hicache_dbg.pools.controller import HiCacheController, Match
from hicache_dbg.pools.radix_types import Eviction
from hicache_dbg.pools.state import CacheState
from hicache_dbg.pools.transfer import CopyOp, TransferEngine
from hicache_dbg.repro.faults.base import Fault, Target, inside
from hicache_dbg.repro.faults.places import put
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULTS"]


def _freed_in_two_places(target: Target) -> None:
    """Whoever asked for the eviction frees what the eviction has freed.

    The refusal is swallowed.
    """
    state = inside(target.controller)

    def let_go(evictions: list[Eviction]) -> None:
        CacheState._let_go(state, evictions)  # noqa: SLF001 - the method that is replaced
        for item in evictions:
            target.harmed(item.device_pages)
            with suppress(AllocatorError):
                state.device.free(item.device_pages)

    put(state, "_let_go", let_go)


def _unlocked_twice(target: Target) -> None:
    """The retrieve path and the cleanup path both unlock; the count is clamped at zero."""
    controller = target.controller

    def unlock(match: Match) -> None:
        HiCacheController.unlock(controller, match)
        if not match.node.locks:
            with suppress(ValueError):
                controller.tree.unlock(match.node)

    put(controller, "unlock", unlock)


def _slot_kept_after_failure(target: Target) -> None:
    """A backup that fails returns before it gives its host pages back; once."""
    state = inside(target.controller)
    failing = [True]

    class Engine(TransferEngine):
        """An engine whose first backup fails."""

        def backup(self, op: CopyOp) -> None:
            """Fail once, with nothing moved."""
            if failing:
                op.status = "failed"
                raise OSError("host link down")
            super().backup(op)

    def free(pages: object) -> None:
        if failing:
            failing.clear()
            return
        PageAllocator.free(state.host, pages)  # type: ignore[arg-type]  # handed on as it came

    state.engine = Engine()
    put(state.host, "free", free)


FAULTS = (
    Fault(
        name="evicted_pages_freed_twice",
        cls=FaultClass.DOUBLE_FREE,
        summary="device pages are freed by the eviction and again by its caller",
        install=_freed_in_two_places,
    ),
    Fault(
        name="match_unlocked_twice",
        cls=FaultClass.DOUBLE_FREE,
        summary="two paths unlock one match, and the count is clamped at zero",
        install=_unlocked_twice,
        pools=("prefix_tree",),
    ),
    Fault(
        name="failed_backup_keeps_its_pages",
        cls=FaultClass.DOUBLE_FREE,
        summary="a backup that fails never gives its host pages back",
        install=_slot_kept_after_failure,
    ),
)
