# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""A fake device on the CPU: work is enqueued as on a GPU and completes when the test says so."""

import ctypes
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import torch
from released_base import Setup
from released_traced import Traced

from hicache_dbg.tracer.attach.sglang.gpu import Slot
from hicache_dbg.tracer.attach.sglang.gpu_plans import DevicePool
from hicache_dbg.tracer.bench import host_lane
from hicache_dbg.tracer.digest.torch_digester import TorchDigester
from hicache_dbg.tracer.view import View

#: CUDA_ERROR_NOT_READY, CUDA_ERROR_UNKNOWN.
NOT_YET, REFUSED = 600, 999

__all__ = ["HostLane", "HostMark", "HostSlot", "HostWhole", "beside"]


class HostSlot(host_lane.HostSlot):
    """A slot in CPU memory, whose event completes when the test says so."""

    over: bool
    #: From its event to the begin of any other operation.
    ms = 0.0

    def __init__(self, words: int) -> None:
        event = SimpleNamespace(query=lambda: self.over, elapsed_time=lambda _: self.ms)
        super().__init__(words, event)
        self.handle = id(self)
        self.over = True

    def come(self) -> None:
        """Complete the event."""
        self.over = True


class HostMark:
    """The event of an operation's begin, ``ms`` before its end."""

    cuda_event = 1
    ms = 0.0

    def elapsed_time(self, _: Any) -> float:
        """Return the time that the test chose."""
        return self.ms


class HostLane(host_lane.HostLane):
    """A lane over the torch digester; it records what is enqueued and in which order."""

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
        self._driver = driver_of(self)
        self.addresses = tuple(address_of(call) for call in self._driver)

    def _waited(self, _: int, event: int, __: int) -> int:
        """Return 0, the driver's code for success."""
        self.waited.append(event)
        return 0

    def _asked(self, event: int) -> int:
        """Return the driver's code: 0 if the event has completed."""
        return 0 if all(slot.over for slot in self.begun if slot.handle == event) else NOT_YET

    def mark(self, stream: int) -> Any:
        """Return the event of an operation's begin."""
        self.record(HostMark.cuda_event, stream)
        return HostMark()

    def slot(self, words: int) -> Slot:
        """Return new CPU memory each time."""
        slot = HostSlot(words)
        slot.over = self.over
        self.begun.append(slot)
        return slot

    def _noted(self, event: int, stream: int) -> int:
        """Record nothing: events complete when the test says so."""
        self.recorded.append((event, stream))
        return 0


def driver_of(lane: HostLane) -> "Sequence[ctypes._FuncPointer]":
    """Return C functions that do what the lane's do; a failed one returns ``REFUSED``."""

    def launch(config: int, function: int, parameters: int, _: int) -> int:
        stream = ctypes.c_int64.from_address(config + struct.calcsize("7I4x")).value
        places = (ctypes.c_void_p * 7).from_address(parameters)
        values = [ctypes.c_int64.from_address(place or 0).value for place in places]
        HostLaunch.numbered[function](stream, values[4], *values)
        return 0

    def capturing(_: int, status: int) -> int:
        ctypes.c_int.from_address(status).value = int(lane.captures())
        return 0

    def wait(*call: int) -> int:  # asked anew each time: a test may replace it
        return int(lane.wait(*call))

    def record(*call: int) -> int:
        return int(lane.raw_record(*call))

    word, code = ctypes.c_ssize_t, ctypes.c_int
    calls: dict[Callable[..., int], int] = {wait: 3, record: 2, launch: 4, capturing: 2}
    return [ctypes.CFUNCTYPE(code, *[word] * count)(_coded(call)) for call, count in calls.items()]


def address_of(function: Any) -> int:
    """Return the address of a C function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _coded(call: Callable[..., int]) -> Callable[..., int]:
    def coded(*arguments: int) -> int:
        try:
            return call(*arguments)
        except Exception:  # noqa: BLE001 - as a driver
            return REFUSED

    return coded


class Order:
    """Records which streams waited for which; all streams are in order already."""

    def __init__(self) -> None:
        self.held: list[tuple[int, int]] = []
        self._recorded = 0

    def record(self, stream: int) -> None:
        """Record an event of this stream."""
        self._recorded = stream

    def hold(self, stream: int) -> None:
        """Make this stream wait."""
        self.held.append((stream, self._recorded))


class HostLaunch:
    """A launch that calls ``run`` with its arguments; a :class:`HostLane` finds it by its number."""

    numbered: ClassVar[dict[int, "HostLaunch"]] = {}

    def __init__(self, run: Callable[..., None]) -> None:
        self.run, self.number = run, len(self.numbered) + 1
        self.numbered[self.number] = self

    def __call__(self, stream: int, pages: int, *leading: int) -> None:
        """Run as a prepared launch does."""
        self.run(stream, pages, *leading)

    def filled(self, count: int, bases: int, unit: int) -> tuple[int, bytes]:
        """Return the number for an address, and the launch's memory as a GPU's."""
        return self.number, struct.pack(
            "<7I4xQQQ8q", *[0] * 10, bases, 0, 0, unit, count, 0, count, 0
        )


class HostWhole:
    """The launches that digest whole pages of all layers by address, called like the GPU's kernels."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.bases = 7
        #: How often each was called.
        self.launched: Counter[str] = Counter()
        self.every, self.sparing = (
            HostLaunch(partial(self._run, name)) for name in ("every", "sparing")
        )

    def _run(  # noqa: PLR0917 - as a prepared launch
        self, name: str, _: int, pages: int, bases: int, ids: int, step: int, unit: int, *out: int
    ) -> None:
        count, address, row = out
        assert (bases, count, row) == (self.bases, pages, pages)
        self.launched[name] += 1
        given = (ctypes.c_int64 * (step * (pages - 1) + 1)).from_address(ids)
        chosen = torch.tensor(given[::step]) // unit
        shape = self._view.layers, pages
        room = (ctypes.c_int64 * (shape[0] * pages)).from_address(address)
        got = torch.frombuffer(room, dtype=torch.int64).view(shape)
        TorchDigester("cpu").digest(self._view, range(shape[0]), chosen, out=got)


def beside(run: Traced, setup: Setup, *, at_once: bool = False) -> HostLane:
    """Treat this pool's device end as one on a GPU; ``at_once`` uses launches of whole pages."""
    lane, record = HostLane(), run.record(setup.pool)
    views = record.mirror.device
    size = sum(view.tile_bytes() for view in views.values())
    whole = tuple((name, HostWhole(view)) for name, view in views.items()) if at_once else ()
    known = DevicePool(record, lane, views, size, cast("Any", whole))
    run.attachment.observer.devices.by_pool[id(setup.pool)] = known
    return lane
