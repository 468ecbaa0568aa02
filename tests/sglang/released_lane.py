# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""A device that is a CPU: work is enqueued there as on a GPU, and is over when the test says so."""

from types import SimpleNamespace
from typing import Any, cast

from released_base import Setup
from released_traced import Traced

from hicache_dbg.tracer.attach.sglang.gpu import Slot
from hicache_dbg.tracer.attach.sglang.gpu_plans import DevicePool
from hicache_dbg.tracer.bench import host_lane
from hicache_dbg.tracer.digest.torch_digester import TorchDigester

#: CUDA_ERROR_NOT_READY.
NOT_YET = 600

__all__ = ["HostLane", "HostMark", "HostSlot", "beside"]


class HostSlot(host_lane.HostSlot):
    """Room on the CPU, whose event comes when the test says so."""

    over: bool

    def __init__(self, words: int) -> None:
        super().__init__(words, SimpleNamespace(query=lambda: self.over))
        self.handle = id(self)
        self.over = True

    def come(self) -> None:
        """The device is done."""
        self.over = True


class HostMark:
    """An event of an operation's begin, ``ms`` before its end."""

    cuda_event = 1
    ms = 0.0

    def elapsed_time(self, _: Any) -> float:
        """As the test says."""
        return self.ms


class HostLane(host_lane.HostLane):
    """Over the digester for any device of torch; notes what is enqueued and in which order."""

    def __init__(self) -> None:
        super().__init__(TorchDigester("cpu"))
        self.order = Order()
        self._order = cast("Any", self.order)
        self.over = True
        self.graph = False
        self.captures = lambda: self.graph
        self.begun: list[HostSlot] = []
        self.recorded: list[tuple[int, int]] = []
        self.waited: list[int] = []
        self.wait, self.query, self.raw_record = self._waited, self._asked, self._noted

    def _waited(self, _: int, event: int, __: int) -> int:
        """As the driver's call: 0, for it succeeds."""
        self.waited.append(event)
        return 0

    def _asked(self, event: int) -> int:
        """As the driver's call: 0 where it has come."""
        return 0 if all(slot.over for slot in self.begun if slot.handle == event) else NOT_YET

    def mark(self, stream: int) -> Any:
        """Of a begin."""
        self.record(HostMark.cuda_event, stream)
        return HostMark()

    def slot(self, words: int) -> Slot:
        """Room on the CPU, a new one each time."""
        slot = HostSlot(words)
        slot.over = self.over
        self.begun.append(slot)
        return slot

    def _noted(self, event: int, stream: int) -> int:
        """Nothing to record: events have come when the test says so."""
        self.recorded.append((event, stream))
        return 0


class Order:
    """Which streams were held up until another one had come so far: all are in order already."""

    def __init__(self) -> None:
        self.held: list[tuple[int, int]] = []
        self._recorded = 0

    def record(self, stream: int) -> None:
        """Of this one."""
        self._recorded = stream

    def hold(self, stream: int) -> None:
        """This one waits."""
        self.held.append((stream, self._recorded))


def beside(run: Traced, setup: Setup) -> HostLane:
    """From now on this pool's device end is taken for one on a GPU."""
    lane, record = HostLane(), run.record(setup.pool)
    size = sum(view.tile_bytes() for view in record.mirror.device.values())
    known = DevicePool(record, lane, record.mirror.device, size)
    run.attachment.observer.devices.by_pool[id(setup.pool)] = known
    return lane
