"""Measure the time to judge one of SGLang's operations, over one copy of our own engine.

    python -m benchmarks.sglang_judge [--ops 512] [--profile PAGES]

It needs neither SGLang nor a GPU: hicache_dbg.tracer.bench.sglang_ops has what replaces them. Operations wait in the
ring; then the bus's thread takes them, and its CPU time is read before and after. The second part measures how far a
host thread gets meanwhile with small calls to torch, each of which releases the GIL and takes it again.
"""

import argparse
import cProfile
import pstats
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from benchmarks.bus import Clock, copies_per_second

from hicache_dbg.tracer.bench.sglang_ops import SglangOps
from hicache_dbg.tracer.bench.table import Row, markdown, median
from hicache_dbg.tracer.events import Copied, Finding
from hicache_dbg.tracer.memory_sink import MemorySink

LAYERS, SETS = 61, 32
#: Calls that measure the host thread's speed without the bus.
ALONE = 50_000


def enqueued(ops: SglangOps, count: int) -> tuple[Clock, Clock]:
    """Enqueue ``count`` operations between two clocks; the first blocks the bus until it is going."""
    first, last = Clock(), Clock(going=True)
    ops.session.bus.push(first)
    for number in range(count):
        ops.submit(number)
    ops.session.bus.push(last)
    return first, last


def warmed(sink: MemorySink, pages: int) -> SglangOps:
    """Return a pool of which every set of pages was backed up and loaded once."""
    ops = SglangOps([sink], layers=LAYERS, pages=pages, sets=SETS)
    for number in range(2 * SETS):
        ops.submit(number)
    assert ops.session.bus.flush(60)
    sink.events.clear()
    return ops


def op_us(pages: int, count: int) -> float:
    """Return the microseconds of the bus thread per operation, over backups and loads."""
    sink = MemorySink()
    ops = warmed(sink, pages)
    first, last = enqueued(ops, count)
    first.going = True
    assert ops.session.bus.flush(60)
    events = sink.of(Copied)
    assert not sink.of(Finding)
    assert len(events) == count
    assert sum(event.verified for event in events) == count // 2 * pages * LAYERS
    ops.session.close()
    return (last.seconds - first.seconds) / count * 1e6


@dataclass(frozen=True)
class Shared:
    """How far a host thread gets beside the bus, which judges one operation after another.

    ``rate`` is its calls per second over those without us, ``stolen_us`` the time that each operation
    takes from it, and ``longest_us`` its longest call.
    """

    rate: float
    stolen_us: float
    longest_us: float


def shared(pages: int, count: int) -> Shared:
    """Make small calls to torch until the bus has judged ``count`` operations."""
    ops, value, clock = warmed(MemorySink(), pages), torch.zeros(8), time.perf_counter
    first, last = enqueued(ops, count)
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
    ops.session.close()
    rate = calls * alone / took
    return Shared(rate, (1 - rate) * took / count * 1e6, longest * 1e6)


def profile(pages: int, count: int) -> None:
    """Print which functions the bus's thread spends its time in."""
    ops, profiler = warmed(MemorySink(), pages), cProfile.Profile()

    def begin() -> Sequence[Finding]:
        profiler.enable()
        return ()

    def end() -> Sequence[Finding]:
        profiler.disable()
        return ()

    ops.session.check(begin)
    for number in range(count):
        ops.submit(number)
    ops.session.check(end)
    ops.session.close(60)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


def rows(count: int) -> Iterator[Row]:
    """Yield the rows of the table."""
    own = 1e6 / median([copies_per_second(4, count, ordered=False) for _ in range(3)])
    yield Row("judging a copy", "our own engine, 4 pages of 4 layers", 1.0, f"{own:.0f} us")
    for pages in (4, 32, 128):
        took = median([op_us(pages, count) for _ in range(3)])
        case = f"SGLang's, {pages} pages of {LAYERS} layers"
        yield Row("judging a copy", case, took / own, f"{took:.0f} us")
    for pages in (4, 32):
        runs = [shared(pages, count) for _ in range(5)]
        rate, stolen, longest = (
            median([getattr(run, name) for run in runs])
            for name in ("rate", "stolen_us", "longest_us")
        )
        case = f"beside the bus, {pages} pages of {LAYERS} layers"
        detail = f"{stolen:.0f} us of the host an operation; {longest:.0f} us the longest call"
        yield Row("calls of a host thread", case, rate, detail)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure what judging SGLang's operations takes.")
    parser.add_argument("--ops", type=int, default=512)
    parser.add_argument("--profile", type=int, metavar="PAGES")
    options = parser.parse_args()
    if options.profile:
        profile(options.profile, options.ops)
    else:
        print(markdown([*rows(options.ops)]))


if __name__ == "__main__":
    main()
