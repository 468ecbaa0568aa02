"""Measure copies over the bus with and without concurrent digests."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np
import torch

from hicache_dbg.tracer.bench.memory import one_piece, random_bytes
from hicache_dbg.tracer.bench.overhead import paired
from hicache_dbg.tracer.bench.table import Row, event, median, seconds
from hicache_dbg.tracer.digest.select import DeviceDigester
from hicache_dbg.tracer.digest.watch import Wanted, Watch

if TYPE_CHECKING:
    from hicache_dbg.tracer.digest.watches import Watches

__all__ = ["Reader", "copy_rows", "wanted_of"]


class Reader:
    """Stands in for the bus thread: reads the results of watches as they become ready."""

    def __init__(self) -> None:
        self._watches: SimpleQueue[Watch | None] = SimpleQueue()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()
        self.unconfirmed = 0
        self.take = self._watches.put

    def close(self) -> int:
        """Read the rest; return the number of pages that no watch confirmed."""
        self._watches.put(None)
        self._thread.join()
        return self.unconfirmed

    def _run(self) -> None:
        while (watch := self._watches.get()) is not None:
            while not watch.ready():
                time.sleep(0.0005)
            self.unconfirmed += int((~watch.seen().confirmed).sum())


def wanted_of(
    mirror: object, memory: torch.Tensor, size: int, pages: np.ndarray, *, loads: bool
) -> Wanted:
    """Describe all layers of ``pages`` of ``size`` bytes; each page's host page has its number."""
    view = one_piece(memory, size)
    first = np.ones(len(pages), np.int64)
    return Wanted(
        mirror=mirror,
        component="kv",
        view=view,
        loads=loads,
        layers=tuple(range(view.layers)),
        pages=pages,
        entries=pages,
        generations=first,
        writes=first,
        size=view.pages,
    )


class Copies:
    """A device pool, pinned host pages, and operations whose slots are recycled while they run.

    An operation moves all layers in a few groups: one stream gathers or scatters pages, another
    crosses the bus and is busy throughout. Operation ``n`` uses page set ``n % SETS``. Once it is
    complete, a third stream overwrites the set's device pages, and the next operation on the set
    waits for that. A backup waits on the host, because it is only submitted once its source is
    complete.
    """

    LAYERS, PAGE, COUNT, SETS = 61, 16384, 256, 4
    GROUPS = (slice(0, 20), slice(20, 40), slice(40, 58), slice(58, 61))

    def __init__(self, watches: "Watches") -> None:
        layers, count, words = self.LAYERS, self.COUNT, self.PAGE // 8
        self.watches, self.reader = watches, Reader()
        memory = random_bytes((layers, self.SETS * count, self.PAGE), "cuda")
        self.pool = memory.view(torch.int64)
        self.host = [
            torch.empty(layers, count, words, dtype=torch.int64, pin_memory=True)
            for _ in range(self.SETS)
        ]
        self.ids = list(torch.randperm(self.SETS * count, device="cuda").view(self.SETS, count))
        self.wanted = {
            loads: [
                wanted_of(self, memory.flatten(1), self.PAGE, ids.cpu().numpy(), loads=loads)
                for ids in self.ids
            ]
            for loads in (False, True)
        }
        self.fresh = random_bytes((layers, count, self.PAGE), "cuda").view(torch.int64)
        self.staged = [torch.empty_like(self.fresh) for _ in range(2)]
        self.pages, self.bus, self.writer = (torch.cuda.Stream() for _ in range(3))
        self.free = [event() for _ in self.staged]
        self.done = [event() for _ in range(self.SETS)]
        self.written = [event() for _ in range(self.SETS)]

    def backup(self, number: int, *, traced: bool) -> None:
        """Copy device to host: gather each group while the one before it crosses the bus."""
        at = number % self.SETS
        self.written[at].synchronize()
        watch = self._watch(at, loads=False) if traced else None
        staged, free = self.staged[number % 2], self.free[number % 2]
        self.pages.wait_event(free)
        for group in self.GROUPS:
            with torch.cuda.stream(self.pages):
                torch.index_select(self.pool[group], 1, self.ids[at], out=staged[group])
            self.bus.wait_stream(self.pages)
            with torch.cuda.stream(self.bus):
                self.host[at][group].copy_(staged[group], non_blocking=True)
        free.record(self.bus)
        self._complete(at, watch, self.bus)

    def load(self, number: int, *, traced: bool) -> None:
        """Copy host to device: scatter each group while the next one crosses the bus."""
        at = number % self.SETS
        watch = self._watch(at, loads=True) if traced else None
        staged, free = self.staged[number % 2], self.free[number % 2]
        self.bus.wait_event(free)
        self.pages.wait_event(self.written[at])
        for group in self.GROUPS:
            with torch.cuda.stream(self.bus):
                staged[group].copy_(self.host[at][group], non_blocking=True)
            self.pages.wait_stream(self.bus)
            with torch.cuda.stream(self.pages):
                self.pool[group].index_copy_(1, self.ids[at], staged[group])
            if watch is not None and group is self.GROUPS[-2]:
                watch.arrived(self.pages.cuda_stream)
        free.record(self.pages)
        self._complete(at, watch, self.pages)

    def _watch(self, at: int, *, loads: bool) -> Watch:
        watch = self.watches.watch(self.wanted[loads][at])
        if watch is None:
            raise RuntimeError("the reader lags more than 64 operations behind")
        return watch

    def _complete(self, at: int, watch: Watch | None, last: torch.cuda.Stream) -> None:
        """Record the end of the operation on ``last``, and recycle its pages after that."""
        if watch is not None:
            watch.queued(last.cuda_stream, self.LAYERS)
            self.reader.take(watch)
        self.done[at].record(last)
        self.writer.wait_event(self.done[at])
        with torch.cuda.stream(self.writer):
            self.pool.index_copy_(1, self.ids[at], self.fresh)
        self.written[at].record(self.writer)


#: Cases, each with its number of back-to-back operations and its goal.
_RUNS = (("stream of 24", 24, "<= 1.003"), ("one op", 1, "<= 1.015"))


def copy_rows(digester: DeviceDigester, pairs: int = 15) -> Iterator[Row]:
    """Measure streams of 24 operations and single ones.

    Finally flip one bit to prove that it is found.
    """
    watches = digester.watches()
    if watches is None:
        return
    copies = Copies(watches)
    size = copies.LAYERS * copies.COUNT * copies.PAGE
    cases: dict[str, Callable[..., None]] = {"backup": copies.backup, "load": copies.load}
    for name, operation in cases.items():
        for case, count, limit in _RUNS:
            run = partial(run_operations, operation, count)
            # Traced last, so that the loads compare with what the pages now hold.
            for traced in (False, True):
                run(traced=traced)
            if name == "load":  # back up what the pages hold now
                run_operations(copies.backup, copies.SETS, traced=True)
            ratios = paired(partial(run, traced=False), partial(run, traced=True), pairs)
            speed = size * count / run(traced=True) / 1e9
            detail = f"{speed:.1f} GB/s, min {min(ratios):.4f} max {max(ratios):.4f}"
            yield Row("with over without", f"{name}, {case}", median(ratios), detail, limit)
    yield Row("with over without", "what was found", None, _found(copies))


def _found(copies: Copies) -> str:
    """Count the unconfirmed pages of loads, first as backed up, then with one bit flipped."""
    counts = []
    for flip in (0, 1):
        copies.reader.close()
        copies.reader = Reader()
        copies.host[1][7, 5, 3] ^= flip
        run_operations(copies.load, copies.SETS, traced=True)
        counts.append(copies.reader.close())
    copies.reader = Reader()
    return f"{counts[0]} pages of 1024 differ, {counts[1]} after one flipped bit"


def run_operations(operation: Callable[..., None], count: int, *, traced: bool) -> float:
    """Return the seconds from an idle device until ``count`` operations are done."""

    def run() -> None:
        for number in range(count):
            operation(number, traced=traced)

    torch.cuda.synchronize()
    return seconds(run)
