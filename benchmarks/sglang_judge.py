"""What judging one of SGLang's operations takes the bus's thread, over one copy of our own engine.

    python benchmarks/sglang_judge.py [--ops 400] [--profile]

The pool is one that the attachment reads as SGLang's own, and everything behind the driver's calls is the
real one: the call is noted, its operation submitted, and its record judged by the session's bus. In the place
of a device stands one whose work is over at once: digests are numbers made of page and layer. Operations wait
in the ring; then the bus's thread takes them, and its own clock (processor time) is read before and after.
No SGLang is needed, nor a GPU.
"""

import argparse
import cProfile
import pstats
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import torch
from bus import Clock, a_second

from hicache_dbg.tracer.attach.sglang.gpu import Lane, Slot
from hicache_dbg.tracer.attach.sglang.gpu_plans import DevicePool
from hicache_dbg.tracer.attach.sglang.kinds import BACKUP, LOAD
from hicache_dbg.tracer.attach.sglang.observer import Observer
from hicache_dbg.tracer.attach.sglang.session import SglangSession
from hicache_dbg.tracer.bench.table import Row, markdown, median
from hicache_dbg.tracer.digest.tiles import TileDigester
from hicache_dbg.tracer.events import Copied, Event, Finding
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.settings import Checksum, Gate, Settings
from hicache_dbg.tracer.sink import Sink

__all__ = ["Rig"]

LAYERS, PAGE, SETS = 61, 64, 32
#: Calls by which the host's own speed is known.
ALONE = 50_000


class MLATokenToKVPoolHost:
    """What the attachment reads of SGLang's class of this name, with rows of 8 B."""

    layout = "layer_first"

    def __init__(self, layers: int, pages: int) -> None:
        self.page_size, self.size, self.layer_num = PAGE, pages * PAGE, layers
        self.size_per_token = 8 * layers
        self.kv_buffer = torch.zeros(layers, pages * PAGE, 1, 8, dtype=torch.uint8)
        self.device_kv_buffers = list(self.kv_buffer.clone())

    def backup_from_device_all_layer(self, *_: Any) -> None:
        """Moves nothing."""

    def load_to_device_per_layer(self, *_: Any) -> None:
        """Moves nothing."""


class Numbers:
    """Digests that say which tile they are of."""

    def digest(
        self, view: Any, layers: range, pages: torch.Tensor, *, out: torch.Tensor, **_: Any
    ) -> None:
        """Number each tile of ``pages``, given by the first token of each, from 1 on."""
        first = torch.arange(layers.start, layers.stop).view(-1, 1) + 1
        out.copy_(first + 1000 * (pages // PAGE % SETS))


class HostSlot(Slot):
    """Room on the CPU."""

    def __init__(self, words: int) -> None:
        self.room = torch.empty(words, dtype=torch.int64)
        self.event = cast("Any", Over())
        self.handle, self.size = 2, words
        self.parts, self.words, self.refused = [], 0, ""
        self.streams = set()
        self._views = {}

    def used_on(self, stream: int, device: torch.device) -> None:
        """Nobody else's memory."""


class Over:
    """An event of SGLang's that has come."""

    cuda_event = 1

    def query(self) -> bool:
        """It has."""
        return True

    def elapsed_time(self, _: Any) -> float:
        """A millisecond lies between two."""
        return 1.0


class HostLane(Lane):
    """A device whose work is over as it is enqueued."""

    def __init__(self) -> None:
        self.digester = cast("Any", Numbers())
        self.device = torch.device("cpu")
        self.lock = threading.Lock()
        self._none = torch.empty(0, dtype=torch.int64)
        self._slots, self._marks = deque(), deque()
        self.side, self._order = 0, cast("Any", SimpleNamespace(record=id, hold=id))
        self.wait = self.query = lambda *_: 0

    def captures(self) -> bool:
        """There are no graphs."""
        return False

    def stream(self) -> int:
        """There is one."""
        return 0

    def mark(self, stream: int) -> Any:
        """It has come."""
        return Over()

    def slot(self, words: int) -> Slot:
        """A new one: the next operation comes before the last one's was read."""
        return HostSlot(words)

    def record(self, event: int, stream: int) -> None:
        """Nothing to record."""

    def read(self, slot: Slot | None, *indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """They are here."""
        return self._none if slot is None else slot.room[: slot.words], *indices


class Rig:
    """Operations of one pool under the tracer, submitted as SGLang's engine submits them."""

    def __init__(self, pages: int, sinks: Sequence[Sink], queue: int = 1 << 16) -> None:
        settings = Settings(gate=Gate.ON, checksum=Checksum.LOADS, queue=queue)
        self.session = SglangSession(settings, sinks, TileDigester(), version="0.5.23")
        self.observer = Observer("0.5.23", lambda: self.session, lambda _: None)
        self.observer.on = True
        self.pool = MLATokenToKVPoolHost(LAYERS, SETS * pages)
        self.observer.built(self.pool, ())
        record = self.observer.registry.of(self.pool)
        assert record is not None
        size = sum(view.tile_bytes() for view in record.mirror.device.values())
        self.device = DevicePool(record, HostLane(), record.mirror.device, size)
        self.over = Over()
        self.ids = torch.arange(SETS * pages * PAGE).split(pages * PAGE)

    def submit(self, number: int) -> None:
        """A backup of each set of pages, then a load of each, and so on."""
        loads, ids = bool(number // SETS % 2), self.ids[number % SETS]
        calls = self.observer
        frame = calls.frames.begin(self.session.probe)
        frame.over = frame.start = self.over
        frame.timed = True
        if loads:
            for layer in range(LAYERS):
                given = None, ids, ids, layer, "kernel"
                call = MLATokenToKVPoolHost.load_to_device_per_layer
                calls.beside(self.device, call, LOAD, self.pool, given, {})
        else:
            given = None, ids, ids, "kernel"
            call = MLATokenToKVPoolHost.backup_from_device_all_layer
            calls.beside(self.device, call, BACKUP, self.pool, given, {})
        calls.frames.end(frame)

    def judged_s(self, ops: int) -> float:
        """Seconds of the bus's thread that so many operations take, which have all come before."""
        first, last = Clock(), Clock(going=True)
        self.session.bus.push(first)
        for number in range(ops):
            self.submit(number)
        self.session.bus.push(last)
        first.going = True
        assert self.session.bus.flush(60)
        return last.seconds - first.seconds


@dataclass(frozen=True)
class Shared:
    """What a thread of the host's gets done beside the bus, which judges one operation after another.

    ``rate`` is its calls a second over those without us; ``stolen_us`` what each operation costs it, and
    ``longest_us`` the longest that one call took.
    """

    rate: float
    stolen_us: float
    longest_us: float


def shared(pages: int, ops: int, sinks: Sequence[Sink]) -> Shared:
    """Many small calls of torch, each of which lets go of the interpreter, beside the bus."""
    rig, value, clock = Rig(pages, sinks), torch.zeros(8), time.perf_counter
    rig.judged_s(2 * SETS)
    first, last = Clock(), Clock(going=True)
    rig.session.bus.push(first)
    for number in range(ops):
        rig.submit(number)
    rig.session.bus.push(last)
    began = clock()
    for _ in range(ALONE):
        value.add_(1)
    alone = (clock() - began) / ALONE
    calls, longest, began = 0, 0.0, clock()
    first.going = True
    called = began
    while not last.seconds:
        value.add_(1)
        now = clock()
        longest, called, calls = max(longest, now - called), now, calls + 1
    took = clock() - began
    rig.session.close()
    rate = calls * alone / took
    return Shared(rate, (1 - rate) * took / ops * 1e6, longest * 1e6)


class Profiled:
    """Profiles the bus's thread from one turn to another."""

    def __init__(self) -> None:
        self.profile = cProfile.Profile()

    def begin(self) -> Sequence[Event]:
        self.profile.enable()
        return ()

    def end(self) -> Sequence[Event]:
        self.profile.disable()
        return ()


def op_us(pages: int, ops: int, *, profile: bool = False) -> float:
    """Microseconds of the bus's thread an operation, backups and loads alike."""
    sink = MemorySink()
    rig = Rig(pages, [sink])
    rig.judged_s(2 * SETS)
    sink.events.clear()
    profiled = Profiled()
    if profile:
        rig.session.check(profiled.begin)
    took = rig.judged_s(ops) / ops * 1e6
    if profile:
        rig.session.check(profiled.end)
        rig.session.bus.flush()
        pstats.Stats(profiled.profile).sort_stats("tottime").print_stats(45)
    events = sink.of(Copied)
    assert not sink.of(Finding)
    assert len(events) == ops
    assert sum(event.verified for event in events) == ops // 2 * pages * LAYERS
    rig.session.close()
    return took


def rows(ops: int) -> Iterator[Row]:
    """A row for each number of pages."""
    own = 1e6 / median([a_second(4, ops, ordered=False) for _ in range(3)])
    yield Row("judging a copy", "our own engine, 4 pages of 4 layers", 1.0, f"{own:.0f} us")
    for pages in (4, 32, 128):
        took = median([op_us(pages, ops) for _ in range(3)])
        case = f"SGLang's, {pages} pages of {LAYERS} layers"
        yield Row("judging a copy", case, took / own, f"{took:.0f} us")
    for pages in (4, 32):
        runs = [shared(pages, ops, [MemorySink()]) for _ in range(5)]
        rate, stolen, longest = (
            median([getattr(run, name) for run in runs])
            for name in ("rate", "stolen_us", "longest_us")
        )
        case = f"beside the bus, {pages} pages of {LAYERS} layers"
        told = f"{stolen:.0f} us of the host an operation; {longest:.0f} us the longest call"
        yield Row("calls of a host's thread", case, rate, told)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure what judging SGLang's operations takes.")
    parser.add_argument("--ops", type=int, default=512)
    parser.add_argument("--profile", type=int, default=0)
    options = parser.parse_args()
    if options.profile:
        op_us(options.profile, options.ops, profile=True)
        return
    print(markdown([*rows(options.ops)]))


if __name__ == "__main__":
    main()
