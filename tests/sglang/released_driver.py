# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""A CUDA driver on the CPU: C functions that Python and compiled code call alike, and that fail as told."""

import ctypes
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from released_base import Setup
from released_traced import Traced

from hicache_dbg.tracer.attach.sglang import gpu
from hicache_dbg.tracer.attach.sglang.gpu import Slot
from hicache_dbg.tracer.attach.sglang.gpu_plans import DevicePool
from hicache_dbg.tracer.bench import host_lane
from hicache_dbg.tracer.digest import driver as calls
from hicache_dbg.tracer.digest import launch
from hicache_dbg.tracer.digest.torch_digester import TorchDigester
from hicache_dbg.tracer.view import View

__all__ = ["STREAM", "Driver", "DriverLane", "beside"]

#: SGLang's stream, ours beside it, and the error of a call that is told to fail.
STREAM, SIDE, REFUSED = 5, 9, 719
#: The event of an operation's begin, as long as SGLang's are not known to have timing.
BEGIN = 3
_WORD, _CODE = ctypes.c_uint64, ctypes.c_int
_LEADING = 7
#: CUlaunchConfig up to its stream: grid, block, shared memory, padding.
_STREAM_AT = 32


class Driver:
    """Answers as CUDA's driver does; ``log`` is what it was asked.

    Work is done when it is enqueued. Every call takes the GIL, which its caller holds.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.graph = False
        #: Which call from now on fails; 0 for none.
        self.fails_at = 0
        self._views: dict[int, View] = {}
        self.calls = SimpleNamespace(
            cuStreamWaitEvent=self._call("cuStreamWaitEvent", _WORD, _WORD, ctypes.c_uint),
            cuEventRecord=self._call("cuEventRecord", _WORD, _WORD),
            cuEventQuery=ctypes.CFUNCTYPE(_CODE, _WORD)(lambda _: 0),
            cuLaunchKernelEx=self._call("cuLaunchKernelEx", *[ctypes.c_void_p] * 4),
            cuStreamIsCapturing=ctypes.CFUNCTYPE(_CODE, _WORD, ctypes.POINTER(_CODE))(
                self._capturing
            ),
            cuGetErrorString=lambda _code, _text: 0,
        )
        for module in (calls, launch, gpu):
            patch.setattr(module, "driver", lambda: self.calls)

    def _call(self, name: str, *types: Any) -> Any:
        def call(*arguments: Any) -> int:
            if name == "cuEventRecord" and arguments[0] == BEGIN:
                return 0  # a mark that may turn out not to be needed
            self.fails_at -= 1
            if self.fails_at == 0:
                self.log.append((name, "refused"))
                return REFUSED
            if name == "cuLaunchKernelEx":
                self._launched(*arguments)
            else:
                self.log.append((name, *arguments))
            return 0

        made: Any = ctypes.CFUNCTYPE(_CODE, *types)(call)
        made.__name__ = name
        return made

    def _capturing(self, _: int, status: Any) -> int:
        status[0] = 1 if self.graph else 0
        return 0

    def whole(self, view: View, *, tiles: int, sparing: int) -> Any:
        """Return launches of whole pages of a view, whose arguments are packed as on a GPU."""
        function = len(self._views) + 1
        self._views[function] = view
        made = [
            launch.PreparedLaunch(
                cast("Any", None),
                ctypes.c_void_p(function),
                bytes(56 + 8 * 12),
                12,
                grid,
                56 + 8 * 4,
            )
            for grid in ((tiles, (1 << 31) - 1), (tiles, sparing))
        ]
        return SimpleNamespace(every=made[0], sparing=made[1], bases=7, rows=view.layers)

    def _launched(self, config: int, function: int, parameters: int, _: int) -> None:
        columns = _CODE.from_address(config).value
        stream = _WORD.from_address(config + _STREAM_AT).value
        where = (ctypes.c_void_p * _LEADING).from_address(parameters)
        bases, ids, step, unit, many, out, row = (
            ctypes.c_int64.from_address(at or 0).value for at in where
        )
        view = self._views[function]
        self.log.append(
            ("cuLaunchKernelEx", function, columns, stream, bases, step, unit, many, row)
        )
        given = (ctypes.c_int64 * (step * (many - 1) + 1)).from_address(ids)
        chosen = torch.tensor(given[::step]) // unit
        room = (ctypes.c_int64 * (view.layers * many)).from_address(out)
        got = torch.frombuffer(room, dtype=torch.int64).view(view.layers, many)
        TorchDigester("cpu").digest(view, range(view.layers), chosen, out=got)


class _Event:
    """An event of ours, which has come."""

    def __init__(self, handle: int) -> None:
        self.cuda_event = handle

    def query(self) -> bool:
        """Return True."""
        return True

    def elapsed_time(self, _: Any) -> float:
        """Return 0 ms."""
        return 0.0


class DriverLane(host_lane.HostLane):
    """A lane whose calls are the driver's."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(TorchDigester("cpu"))
        made = driver.calls
        self.wait, self.raw_record, self.query = (
            *(made.cuStreamWaitEvent, made.cuEventRecord),
            made.cuEventQuery,
        )
        self.captures = lambda: driver.graph
        self.stream = cast("Any", lambda: STREAM)
        self.sides = cast("Any", host_lane.HostSides({STREAM: SIDE}))
        self.addresses = tuple(
            ctypes.cast(getattr(made, name), ctypes.c_void_p).value or 0
            for name in (
                *("cuStreamWaitEvent", "cuEventRecord", "cuLaunchKernelEx"),
                "cuStreamIsCapturing",
            )
        )

    def mark(self, stream: int) -> Any:
        """Record an event of the begin."""
        self.record(BEGIN, stream)
        return _Event(BEGIN)

    def slot(self, words: int) -> Slot:
        """Return a free slot if it is large enough, else a new one."""
        slot = self.slots.pop() if self.slots else None
        if slot is None or slot.size < words:
            slot = host_lane.HostSlot(max(words, 8), _Event(2))
        slot.parts, slot.words, slot.refused = [], 0, ""
        return slot


def beside(run: Traced, setup: Setup, driver: Driver) -> DriverLane:
    """Treat this pool's device end as one on a GPU."""
    lane, record = DriverLane(driver), run.record(setup.pool)
    views = record.mirror.device
    size = sum(view.tile_bytes() for view in views.values())
    whole = tuple((name, driver.whole(view, tiles=2, sparing=2)) for name, view in views.items())
    known = DevicePool(record, lane, views, size, cast("Any", whole))
    run.attachment.observer.devices.by_pool[id(setup.pool)] = known
    return lane
