"""Copies over the bus with and without digests beside them."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import torch

from hicache_dbg.tracer.bench.memory import one_piece, random_bytes
from hicache_dbg.tracer.bench.table import Row, event, median, seconds
from hicache_dbg.tracer.digest.ring import ViolationRing
from hicache_dbg.tracer.digest.select import DeviceDigester

__all__ = ["copy_rows"]


class Copies:
    """A device pool, pinned host pages, and operations whose slots are recycled while they run.

    Operation ``n`` uses the page set ``n % SETS``. When it is complete another stream overwrites
    the set's device pages, and the next operation on it waits for that. ``held`` records
    completion on the copy's stream after it has waited for the digests, ``aside`` on theirs.
    """

    LAYERS, PAGE, COUNT, SETS = 61, 16384, 256, 4

    def __init__(self, digester: DeviceDigester) -> None:
        from hicache_dbg.tracer.digest.side import SideStream

        layers, count, words = self.LAYERS, self.COUNT, self.PAGE // 8
        self.digester = digester
        self.pool = random_bytes((layers, self.SETS * count, self.PAGE), "cuda").view(torch.int64)
        self.view = one_piece(self.pool.view(torch.uint8).flatten(1), self.PAGE)
        self.host = [
            torch.empty(layers, count, words, dtype=torch.int64, pin_memory=True)
            for _ in range(self.SETS)
        ]
        self.ledger = [
            torch.empty(layers, count, dtype=torch.int64, pin_memory=True) for _ in range(self.SETS)
        ]
        self.digests = [torch.empty_like(kept, device="cuda") for kept in self.ledger]
        self.ids = list(torch.randperm(self.SETS * count, device="cuda").view(self.SETS, count))
        self.fresh = random_bytes((layers, count, self.PAGE), "cuda").view(torch.int64)
        self.staged = [torch.empty_like(self.fresh) for _ in range(2)]
        self.copy, self.writer = SideStream().stream, SideStream().stream
        self.side, self.ring = SideStream(), ViolationRing("cuda")
        self.done = [event() for _ in range(self.SETS)]
        self.written = [event() for _ in range(self.SETS)]
        digester.prepare(self.view)

    def backup(self, number: int, how: str) -> None:
        """Device to host. The source is digested beside the bus copy, before it may be written."""
        at = number % self.SETS
        self.copy.wait_event(self.written[at])
        staged = self.staged[number % 2]
        with torch.cuda.stream(self.copy):
            torch.index_select(self.pool, 1, self.ids[at], out=staged)
        if how != "off":
            self.side.follow(self.copy.cuda_stream)
            self._digest(at)
        with torch.cuda.stream(self.copy):
            self.host[at].copy_(staged, non_blocking=True)
        self._complete(at, how)
        if how != "off":
            self.side.copy(self.ledger[at], self.digests[at])

    def load(self, number: int, how: str, groups: Sequence[int] = (0, 61)) -> None:
        """Host to device, in groups of layers, each compared once its copy is done."""
        at = number % self.SETS
        self.copy.wait_event(self.written[at])
        if how != "off":
            self.side.copy(self.digests[at], self.ledger[at])
        for low, high in pairwise(groups):
            with torch.cuda.stream(self.copy):
                staged = self.staged[number % 2][low:high]
                staged.copy_(self.host[at][low:high], non_blocking=True)
                self.pool[low:high].index_copy_(1, self.ids[at], staged)
            if how != "off":
                self.side.follow(self.copy.cuda_stream)
                self._compare(at, low, high)
        self._complete(at, how)

    def _digest(self, at: int) -> None:
        self.digester.digest(
            *(self.view, range(self.LAYERS), self.ids[at]),
            out=self.digests[at],
            stream=self.side.handle,
        )

    def _compare(self, at: int, low: int, high: int) -> None:
        self.digester.compare(
            *(self.view, range(low, high), self.ids[at]),
            expected=self.digests[at][low:high],
            ring=self.ring,
            tag=at,
            stream=self.side.handle,
        )

    def _complete(self, at: int, how: str) -> None:
        """Record the operation as complete, and recycle its pages once it is."""
        if how == "held":
            self.side.hold(self.copy.cuda_stream)
        if how == "aside":
            self.side.follow(self.copy.cuda_stream)
            self.done[at].record(self.side.stream)
        else:
            self.done[at].record(self.copy)
        self.writer.wait_event(self.done[at])
        with torch.cuda.stream(self.writer):
            self.pool.index_copy_(1, self.ids[at], self.fresh)
        self.written[at].record(self.writer)

    def violations(self) -> int:
        """How many tiles were found to differ since this was last asked."""
        torch.cuda.synchronize()
        self.ring.fetch()
        torch.cuda.synchronize()
        taken = self.ring.take()
        return len(taken.violations) + taken.lost


def copy_rows(digester: DeviceDigester, pairs: int = 15) -> Iterator[Row]:
    """Streams of 24 operations and single ones; at the end one flipped bit, to show that it counts."""
    copies = Copies(digester)
    size = copies.LAYERS * copies.COUNT * copies.PAGE
    for number in range(copies.SETS):  # what the ledger and the host hold before a load
        copies.backup(number, "held")
    two_groups = partial(copies.load, groups=(0, 50, 61))
    for name, operation in (
        ("backup", copies.backup),
        ("load", copies.load),
        ("load in 2 groups", two_groups),
    ):
        for count, limit in ((24, "<= 1.003"), (1, "<= 1.015")):
            for how in ("held", "aside"):
                run = partial(run_operations, operation, count)
                for warm in ("off", how):
                    run(warm)
                ratios = [run(how) / run("off") for _ in range(pairs)]
                speed = size * count / run(how) / 1e9
                detail = f"{speed:.1f} GB/s, min {min(ratios):.4f} max {max(ratios):.4f}"
                case = f"{name}, {f'stream of {count}' if count > 1 else 'one op'}, {how}"
                yield Row("with over without", case, median(ratios), detail, limit)
    wrong = copies.violations()
    copies.host[1][7, 5, 3] ^= 1
    copies.load(1, "held")
    detail = f"{wrong} violations in the runs above, {copies.violations()} after one flipped bit"
    yield Row("with over without", "what was found", None, detail)


def run_operations(operation: Callable[[int, str], None], count: int, how: str) -> float:
    """Seconds from a quiet device until ``count`` operations are done."""

    def run() -> None:
        for number in range(count):
            operation(number, how)

    torch.cuda.synchronize()
    return seconds(run)
