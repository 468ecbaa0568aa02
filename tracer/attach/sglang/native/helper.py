"""Compiled wrappers and plans for one attachment."""

from collections.abc import Callable
from functools import partial, update_wrapper
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from hicache_dbg.tracer.attach import call_site
from hicache_dbg.tracer.attach.sglang.classes import ours
from hicache_dbg.tracer.attach.sglang.frames import NUMBERS, Frame
from hicache_dbg.tracer.attach.sglang.gates import LOOPS, NO_PAGES, Gates
from hicache_dbg.tracer.attach.sglang.gpu import Slot
from hicache_dbg.tracer.attach.sglang.gpu_ops import DeviceOp
from hicache_dbg.tracer.attach.sglang.gpu_plans import AtOnce, DevicePool, Plan
from hicache_dbg.tracer.attach.sglang.kinds import LOAD
from hicache_dbg.tracer.attach.sglang.layer_split_broadcasts import OWNER_BROADCAST
from hicache_dbg.tracer.attach.sglang.native.build import Unavailable
from hicache_dbg.tracer.attach.sglang.probe import LayerProbe
from hicache_dbg.tracer.attach.sglang.versions import ACKNOWLEDGED, LOADS, events_of
from hicache_dbg.tracer.attach.sglang.whose import HERE
from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.checks.gates import Loading
from hicache_dbg.tracer.checks.violation import Access
from hicache_dbg.tracer.digest.driver import check

if TYPE_CHECKING:
    from hicache_dbg.tracer.attach.sglang.gpu_calls import DeviceCalls

__all__ = ["Helper"]

Function = Callable[..., Any]


class Helper:
    """Makes what the compiled module runs.

    Args:
        module: The compiled module.
        calls: The calls that it follows.
        gates: What follows the loads.
    """

    def __init__(self, module: ModuleType, calls: "DeviceCalls", gates: Gates) -> None:
        self._module: Any = module
        frame, op = _patterns()
        self._calls: Any = self._module.Calls(
            probe=None,
            pools=calls.pools,
            frames=calls.frames,
            here=HERE,
            gates=gates.here,
            history=calls.history,
            begun=calls.history.begun,
            running=calls.running,
            under_way=calls.under_way,
            numbers=NUMBERS,
            frame=frame,
            op=op,
            DevicePool=DevicePool,
            Plan=Plan,
            Slot=Slot,
            Tensor=torch.Tensor,
            exchange=_exchange(),
            brings_every=calls.brings_every,
            end=calls.end,
            moved_over=calls.moved_over,
            sent=gates.sent,
            check=check,
            no_pages=NO_PAGES,
            push=Bus.push,
            current=gates.current,
            on_way=gates.on_way,
            load=Loading(0, Access("", "")),
            begins=gates.begins,
            site=gates.site,
            loops=LOOPS,
            ours=str(Path(call_site.__file__).parent),
            depth=call_site.DEPTH,
            divides=OWNER_BROADCAST[0],
        )

    def ready(self, probe: LayerProbe | None) -> None:
        """Take the session's probe while an operation can begin without asking anything, else None."""
        self._calls.probe = probe

    def copying(self, original: Function, python: Function, method: str) -> Function:
        """Return the compiled wrapper of a copy method; ``python`` runs what is not usual."""
        return self._wrapper("copy", original, python, method, method.startswith(LOAD))

    def operation(self, original: Function, python: Function) -> Function:
        """Return the compiled wrapper of a method that is one operation."""
        name = original.__name__
        events = None if name.startswith("submit") else events_of
        queue = ACKNOWLEDGED.get(name, "")
        return self._wrapper("operation", original, python, name, name in LOADS, events, queue)

    def processing(
        self, original: Function, python: Function, queue: str, nodes: dict[Any, Any]
    ) -> Function:
        """Return the compiled wrapper of a controller's method that processes a queue."""
        name = original.__name__
        return self._wrapper(
            "queue", original, python, name, name in LOADS, queue=queue, nodes=nodes
        )

    def production(self, original: Function, python: Function) -> Function:
        """Return the compiled wrapper of ``LayerDoneCounter.update_producer``."""
        return self._wrapper("production", original, python, original.__name__)

    def _wrapper(
        self, kind: str, original: Function, python: Function, *given: Any, **named: Any
    ) -> Function:
        made = self._module.Wrapper(kind, self._calls, original, python, *given, **named)
        return ours(update_wrapper(made, original))

    def compile(self, plan: Plan) -> None:
        """Let a plan's usual copies run in the compiled wrappers."""
        driver = self._module.Driver(*plan.lane.addresses)
        plan.compiled, plan.driver = partial(self._way, driver), driver

    def _way(self, driver: Any, way: AtOnce) -> Any:
        launches = tuple(
            (*launch.filled(way.many, bases, way.unit), offset)
            for launch, bases, offset in way.launches
        )
        return self._module.Way(
            *(driver, way.start, way.unit, way.words, way.beside, way.during, launches)
        )


def _exchange() -> Any:
    """Return what the module asks about tensors.

    Raises:
        Unavailable: If this torch has no such thing.
    """
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if exchange is None:
        raise Unavailable(f"torch {torch.__version__} lacks DLPack's exchange API: 2.10 has it")
    return exchange


def _patterns() -> tuple[Frame, DeviceOp]:
    """Return a frame and an operation that the module copies, and then fills in."""
    nothing: Any = SimpleNamespace(begins_with=(), stream=int, timed=True)
    frame = Frame(nothing)
    op = DeviceOp(nothing, frame, None, nothing, nothing, (), {})
    frame.on_device.clear()
    return frame, op
