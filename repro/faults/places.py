"""The places in the engine where faults are injected."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.host import HostPool
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.state import CacheState
from hicache_dbg.pools.transfer import CopyOp, TransferEngine
from hicache_dbg.repro.faults.base import Target, inside

__all__ = ["OTHER_OWNER", "after_begin", "overwrite", "put", "run_loads_through"]

#: Owner of pages that a fault gives away.
OTHER_OWNER = 999

Kind = Literal["backup", "load"]
Change = Callable[[CopyOp, Ids, Ids], None]
LayerDone = Callable[[int], None]


def put(instance: object, name: str, function: Callable[..., Any]) -> None:
    """Replace the method ``name`` of one instance by ``function``."""
    vars(instance)[name] = function


def overwrite(pools: Iterable[DevicePool | HostPool], pages: Ids) -> None:
    """Write other bytes into ``pages`` of all ``pools``, as a new owner would."""
    for pool in pools:
        for buffer in pool.buffers.values():
            axis = buffer.dims.index("page")
            for tensor in buffer.tensors:
                for page in pages.tolist():
                    tensor.select(axis, page).fill_(7)


def after_begin(target: Target, kind: Kind, change: Change) -> None:
    """Call ``change`` with each new operation of ``kind``, and its host and device pages."""
    state = inside(target.controller)

    def begin(kind_now: Kind, host: Ids, device: Ids) -> CopyOp:
        op = CacheState.begin(state, kind_now, host, device)
        if kind_now == kind:
            change(op, host, device)
        return op

    put(state, "begin", begin)


def run_loads_through(
    target: Target, around: Callable[[Callable[[LayerDone], None], CopyOp, LayerDone], None]
) -> None:
    """Let ``around`` execute each load, given the engine's own way to do it."""
    state = inside(target.controller)

    class Engine(TransferEngine):
        """The engine with another hand on its loads."""

        def load(self, op: CopyOp, on_layer_done: LayerDone) -> None:
            """Leave the load to ``around``."""
            own = super().load
            around(lambda report: own(op, report), op, on_layer_done)

    state.engine = Engine()
