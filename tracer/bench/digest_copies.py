"""Copies over the bus with and without digests beside them."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np
import torch

from hicache_dbg.tracer.bench.memory import one_piece, random_bytes
from hicache_dbg.tracer.bench.table import Row, event, median, seconds
from hicache_dbg.tracer.digest.select import DeviceDigester
from hicache_dbg.tracer.digest.watch import Wanted, Watch

if TYPE_CHECKING:
    from hicache_dbg.tracer.digest.watches import Watches

__all__ = ["Reader", "copy_rows", "wanted_of"]


class Reader:
    """The bus's part: a thread that reads what watches have seen, as they become ready."""

    def __init__(self) -> None:
        self._watches: SimpleQueue[Watch | None] = SimpleQueue()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()
        self.unconfirmed = 0
        self.take = self._watches.put

    def close(self) -> int:
        """Read the rest; pages of loads, and of backups, that were not confirmed."""
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
    """All layers of ``pages`` of ``size`` bytes, each the twin of the host page of its number."""
    view = one_piece(memory, size)
    lives = np.ones(len(pages), np.int64)
    return Wanted(
        mirror=mirror,
        component="kv",
        view=view,
        loads=loads,
        layers=tuple(range(view.layers)),
        pages=pages,
        entries=pages,
        generations=lives,
        writes=lives,
        size=view.pages,
    )


class Copies:
    """A device pool, pinned host pages, and operations whose slots are recycled while they run.

    Operation ``n`` uses the page set ``n % SETS``. When it is complete another stream overwrites
    the set's device pages, and the next operation on it waits for that. Completion is recorded on
    the copy's stream, which waits for the digests first, or ``apart`` on a stream that comes after
    both, so that the next operation's copies do not wait.
    """

    LAYERS, PAGE, COUNT, SETS = 61, 16384, 256, 4

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
        self.copy, self.writer = torch.cuda.Stream(), torch.cuda.Stream()
        self.done = [event() for _ in range(self.SETS)]
        self.written = [event() for _ in range(self.SETS)]
        self._apart: dict[int, torch.cuda.Stream] = {}

    def backup(self, number: int, *, traced: bool, apart: bool = False) -> None:
        """Device to host; the source is whole when the copy's stream comes to its gather."""
        at = number % self.SETS
        self.copy.wait_event(self.written[at])
        watch = self._watch(at, loads=False) if traced else None
        with torch.cuda.stream(self.copy):
            staged = self.staged[number % 2]
            torch.index_select(self.pool, 1, self.ids[at], out=staged)
            self.host[at].copy_(staged, non_blocking=True)
        self._complete(at, watch, 0, apart)

    def load(self, number: int, *, traced: bool, apart: bool = False) -> None:
        """Host to device: all layers but three, then these; each part compared once it is there."""
        at, last = number % self.SETS, 3
        self.copy.wait_event(self.written[at])
        watch = self._watch(at, loads=True) if traced else None
        for part in (slice(0, -last), slice(-last, None)):
            with torch.cuda.stream(self.copy):
                staged = self.staged[number % 2][part]
                staged.copy_(self.host[at][part], non_blocking=True)
                self.pool[part].index_copy_(1, self.ids[at], staged)
            if watch is not None and part.stop == -last:
                watch.arrived(self.copy.cuda_stream)
        self._complete(at, watch, last, apart)

    def _watch(self, at: int, *, loads: bool) -> Watch:
        watch = self.watches.watch(self.wanted[loads][at], self.copy.cuda_stream)
        if watch is None:
            raise RuntimeError("the reader lags more than 64 operations behind")
        return watch

    def _complete(self, at: int, watch: Watch | None, under_way: int, apart: bool) -> None:
        """Record the operation as complete, and recycle its pages once it is."""
        end = self.copy
        if watch is not None:
            if apart:
                end = self._stream(watch.queued_apart(end.cuda_stream, under_way))
            else:
                watch.queued(end.cuda_stream, under_way)
            self.reader.take(watch)
        self.done[at].record(end)
        self.writer.wait_event(self.done[at])
        with torch.cuda.stream(self.writer):
            self.pool.index_copy_(1, self.ids[at], self.fresh)
        self.written[at].record(self.writer)

    def _stream(self, handle: int) -> torch.cuda.Stream:
        if handle not in self._apart:
            self._apart[handle] = torch.cuda.ExternalStream(handle)
        return self._apart[handle]


#: How many operations follow on each other, the goal, and where their ends are marked.
_RUNS = (
    ("stream of 24", 24, "<= 1.003", False),
    ("stream of 24, ends marked apart", 24, "<= 1.003", True),
    ("one op", 1, "<= 1.015", False),
)


def copy_rows(digester: DeviceDigester, pairs: int = 15) -> Iterator[Row]:
    """Streams of 24 operations and single ones; at the end one flipped bit, to show that it counts."""
    watches = digester.watches()
    if watches is None:
        return
    copies = Copies(watches)
    size = copies.LAYERS * copies.COUNT * copies.PAGE
    cases: dict[str, Callable[..., None]] = {"backup": copies.backup, "load": copies.load}
    for name, operation in cases.items():
        for what, count, limit, apart in _RUNS:
            run = partial(run_operations, partial(operation, apart=apart), count)
            # Traced last: what the pages hold is then what a load compares with.
            for traced in (False, True):
                run(traced=traced)
            if name == "load":  # backups of what the pages hold now
                run_operations(copies.backup, copies.SETS, traced=True)
            ratios = [run(traced=True) / run(traced=False) for _ in range(pairs)]
            speed = size * count / run(traced=True) / 1e9
            detail = f"{speed:.1f} GB/s, min {min(ratios):.4f} max {max(ratios):.4f}"
            yield Row("with over without", f"{name}, {what}", median(ratios), detail, limit)
    yield Row("with over without", "what was found", None, _found(copies))


def _found(copies: Copies) -> str:
    """Loads of what was backed up, then again with one bit flipped."""
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
    """Seconds from a quiet device until ``count`` operations are done."""

    def run() -> None:
        for number in range(count):
            operation(number, traced=traced)

    torch.cuda.synchronize()
    return seconds(run)
