"""Compiled wrappers and plans for one attachment."""

from collections.abc import Callable
from functools import partial, update_wrapper
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from hicache_dbg.tracer.attach.sglang.classes import ours
from hicache_dbg.tracer.attach.sglang.frames import NUMBERS, Frame
from hicache_dbg.tracer.attach.sglang.gates import NO_PAGES
from hicache_dbg.tracer.attach.sglang.gpu import Slot
from hicache_dbg.tracer.attach.sglang.gpu_ops import DeviceOp
from hicache_dbg.tracer.attach.sglang.gpu_plans import AtOnce, DevicePool, Plan
from hicache_dbg.tracer.attach.sglang.kinds import LOAD
from hicache_dbg.tracer.attach.sglang.probe import LayerProbe
from hicache_dbg.tracer.attach.sglang.versions import ACKNOWLEDGED, LOADS, events_of
from hicache_dbg.tracer.attach.sglang.whose import HERE
from hicache_dbg.tracer.bus import Bus
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
        gates: This thread's load (:attr:`Gates.here`).
        sent: Called with a load's operation that has submitted all its layers.
    """

    def __init__(
        self, module: ModuleType, calls: "DeviceCalls", gates: Any, sent: Function
    ) -> None:
        self._module: Any = module
        frame, op = _patterns()
        self._calls: Any = self._module.Calls(
            probe=None,
            pools=calls.pools,
            frames=calls.frames,
            here=HERE,
            gates=gates,
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
            int64=torch.int64,
            brings_every=calls.brings_every,
            end=calls.end,
            moved_over=calls.moved_over,
            sent=sent,
            check=check,
            no_pages=NO_PAGES,
            push=Bus.push,
        )

    def ready(self, probe: LayerProbe | None) -> None:
        """Take the session's probe while an operation can begin without asking anything, else None."""
        self._calls.probe = probe

    def copying(self, original: Function, python: Function, method: str) -> Function:
        """Return the compiled wrapper of a copy method; ``python`` runs what is not usual."""
        made = self._module.Wrapper(self._calls, original, python, method, method.startswith(LOAD))
        return ours(update_wrapper(made, original))

    def operation(self, original: Function, python: Function) -> Function:
        """Return the compiled wrapper of a method that is one operation."""
        name = original.__name__
        events = None if name.startswith("submit") else events_of
        queue = ACKNOWLEDGED.get(name, "")
        made = self._module.Wrapper(
            *(self._calls, original, python, name, name in LOADS, events, queue)
        )
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


def _patterns() -> tuple[Frame, DeviceOp]:
    """Return a frame and an operation that the module copies, and then fills in."""
    nothing: Any = SimpleNamespace(begins_with=(), stream=int, timed=True)
    frame = Frame(nothing)
    op = DeviceOp(nothing, frame, None, nothing, nothing, (), {})
    frame.on_device.clear()
    return frame, op
