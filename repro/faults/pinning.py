"""Host memory that is taken for page-locked and is not."""

from collections.abc import Callable
from dataclasses import replace

from hicache_dbg.pools.geometry import Layout, PoolGeometry
from hicache_dbg.pools.host import HostPool
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.pinning import PinState
from hicache_dbg.pools.transfer import CopyOp
from hicache_dbg.repro.engine import EnginePlan
from hicache_dbg.repro.faults.base import Fault, Target
from hicache_dbg.repro.faults.places import after_begin
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULTS"]

#: ``cudaErrorInvalidValue`` and ``cudaErrorMemoryAllocation``.
INVALID_VALUE, NO_MEMORY = 1, 2
Answer = Callable[[HostPool], PinState]


def _registered(answer: Answer) -> Callable[[EnginePlan], EnginePlan]:
    """The anchor's host pool puts ``answer`` on record for its memory.

    Where there is CUDA the memory is registered all the same: a kernel that reads it by address
    would otherwise end the process.
    """

    def apply(plan: EnginePlan) -> EnginePlan:
        anchor = plan.pools[0].name

        class Registered(plan.host_class[anchor]):  # type: ignore[misc,name-defined]
            """A host pool whose registration went wrong."""

            def _pin(self) -> PinState:
                self._real = super()._pin()
                return answer(self)

            def close(self) -> None:
                """Unregister what was really registered."""
                self.pinned = self._real
                super().close()

        return replace(plan, pin=True, host_class={**plan.host_class, anchor: Registered})

    return apply


def _by_ratio(plan: EnginePlan) -> EnginePlan:
    """The anchor's host tensors are sized by a ratio, and its pages are counted by the index's range."""
    anchor = plan.pools[0].name

    class ByRatio(plan.host_class[anchor]):  # type: ignore[misc,name-defined]
        """Has twice the memory of its pages."""

        def __init__(
            self, geometry: PoolGeometry, pages: int, layout: Layout, pin: bool = False
        ) -> None:
            super().__init__(geometry, 2 * pages, layout, pin)
            self.pages = pages

    return replace(plan, host_class={**plan.host_class, anchor: ByRatio})


def _refused(_pool: HostPool) -> PinState:
    return PinState(requested=True, pinned=False, return_code=NO_MEMORY, bytes=0, chunks=0)


def _not_looked_at(pool: HostPool) -> PinState:
    return PinState(
        requested=True, pinned=True, return_code=INVALID_VALUE, bytes=pool.nbytes, chunks=1
    )


def _cut(pool: HostPool) -> PinState:
    """The size was rounded down to whole chunks."""
    whole = pool.nbytes // 4096 * 4096 - 4096
    return PinState(requested=True, pinned=True, return_code=0, bytes=whole, chunks=1)


def _whole(pool: HostPool) -> PinState:
    return PinState(requested=True, pinned=True, return_code=0, bytes=pool.nbytes, chunks=1)


def _given_back_early(target: Target) -> None:
    """Another owner's clean-up unregisters the memory while the pool is in use."""
    host = target.controller.group.mirrors[0].host

    def change(_op: CopyOp, _host: Ids, _device: Ids) -> None:
        if host.pinned.pinned:
            host.pinned = replace(host.pinned, pinned=False, bytes=0, chunks=0)

    after_begin(target, "load", change)


FAULTS = (
    Fault(
        name="host_register_refused",
        cls=FaultClass.PINNING,
        summary="cudaHostRegister refuses the host pool, and the pool is used all the same",
        apply=_registered(_refused),
        pools=("mla",),
    ),
    Fault(
        name="return_code_not_looked_at",
        cls=FaultClass.PINNING,
        summary="cudaHostRegister fails, nobody looks at its answer, and the pool says it is pinned",
        apply=_registered(_not_looked_at),
        pools=("mla",),
    ),
    Fault(
        name="pinned_to_the_last_whole_chunk",
        cls=FaultClass.PINNING,
        summary="registration is rounded down to whole chunks, and the tail of the pool is not pinned",
        apply=_registered(_cut),
        pools=("mla",),
    ),
    Fault(
        name="host_pool_sized_by_a_ratio",
        cls=FaultClass.PINNING,
        summary="host memory is sized by a ratio, its index by the pages: half of it cannot be reached",
        apply=_by_ratio,
        pools=("mla",),
    ),
    Fault(
        name="unpinned_while_in_use",
        cls=FaultClass.PINNING,
        summary="host memory is unregistered while copies still use it",
        apply=_registered(_whole),
        install=_given_back_early,
        pools=("mla",),
    ),
)
