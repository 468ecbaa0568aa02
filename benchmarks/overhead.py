"""What the instrument costs, as ratios of one run (medians of pairs).

    python benchmarks/overhead.py [--pairs 7] [--sessions 12] [--json]

Prints: a whole repro with digests over one without (the goal is at most 1.10 on a CPU), a call with
the gate off over the bare function (1.00: it is the same object), a traced call over the bare one,
and how many events a second pass the bus into a sink.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import IoBackend, Layout
from hicache_dbg.pools.host import Mirror, host_geometry_like, host_pool_for
from hicache_dbg.pools.indices import Indices
from hicache_dbg.pools.kinds import index_k
from hicache_dbg.pools.transfer import CopyOp, PoolCopy, TransferEngine
from hicache_dbg.repro.config import RunConfig
from hicache_dbg.repro.run import run
from hicache_dbg.tracer.events import Copied, Op, Tier
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings


@dataclass
class Ratio:
    """The median of pairs, and how far they spread."""

    median: float
    low: float
    high: float


def paired(base: Callable[[], float], other: Callable[[], float], pairs: int) -> Ratio:
    """The ratio other / base in seconds, each pair taken back to back in alternating order."""
    ratios = []
    for pair in range(pairs):
        if pair % 2:
            b = other()
            a = base()
        else:
            a = base()
            b = other()
        ratios.append(b / a)
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def seconds(call: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def repeat(call: Callable[[], object], times: int) -> None:
    """``call``, again and again."""
    for _ in range(times):
        call()


def traced(level: Checksum, work: Callable[[], float]) -> float:
    """``work`` under a tracer at ``level``, with a sink in memory."""
    with Runtime.start(Settings(gate=Gate.ON, checksum=level), sinks=[MemorySink()]):
        return work()


def repro_ratio(level: Checksum, sessions: int, pairs: int) -> Ratio:
    """The tiered part of a repro under a tracer over the same part without one."""
    config = RunConfig(sessions=sessions)
    truth = run(config).truth

    def tiered() -> float:
        result = run(config, truth=truth)
        assert result.tiers_used
        assert not result.sessions.corrupted
        return result.wall_seconds

    return paired(tiered, lambda: traced(level, tiered), pairs)


def one_copy() -> tuple[TransferEngine, CopyOp]:
    """A backup of 16 pages of index-K of 4 layers: 1 MiB."""
    pool = DevicePool(index_k(4, 64, "bf16"), 64)
    mirror = Mirror(pool, host_pool_for(host_geometry_like(pool), 64, Layout.PAGE_FIRST))
    pages = np.arange(16)
    copy = PoolCopy(
        mirror=mirror,
        host=Indices.pages(pages, mirror.host.geometry),
        device=Indices.pages(pages, pool.geometry),
        token_granular=False,
        io_backend=IoBackend.KERNEL,
        layers=(0, 1, 2, 3),
    )
    return TransferEngine(), CopyOp(1, "backup", (copy,), np.ones(16, np.uint32))


def call_ratio(start: Callable[[], Runtime] | None, pairs: int, calls: int = 200) -> Ratio:
    """``TransferEngine.backup`` under ``start`` over the function as the class defines it."""
    engine, op = one_copy()
    bare = TransferEngine.__dict__["backup"]

    def base() -> float:
        return seconds(lambda: repeat(lambda: bare(engine, op), calls))

    def other() -> float:
        runtime = start() if start else None
        took = seconds(lambda: repeat(lambda: engine.backup(op), calls))
        if runtime:
            runtime.stop()
        return took

    return paired(base, other, pairs)


def events_a_second(count: int = 200_000) -> float:
    """Complete events pushed into the bus and delivered to a sink in memory, a second."""
    sink = MemorySink()
    runtime = Runtime.start(Settings(gate=Gate.ON, queue=count + 1), sinks=[sink])
    event = Copied(
        time_ns=0,
        pool="dsa_index_k",
        op=Op.LOAD,
        token_granular=False,
        layout="page_first",
        h=1024,
        d=1024,
        slot_page=64,
        unit="token",
        pages=16,
        item_bytes=16384,
        dtype="bfloat16",
        layers=4,
        cls="IndexKHostPool",
        io_backend="kernel",
        src=Tier.HOST,
        dst=Tier.DEVICE,
        bytes=1 << 20,
        duration_us=100.0,
        verified=64,
    )

    def push() -> None:
        for _ in range(count):
            runtime.session.bus.publish(event)
        assert runtime.flush(60)

    took = seconds(push)
    assert len(sink.events) == count
    runtime.stop()
    return count / took


def main(argv: Sequence[str] | None = None) -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description="What the instrument costs, as ratios of one run.")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)

    def on(level: Checksum) -> Callable[[], Runtime]:
        return lambda: Runtime.start(Settings(gate=Gate.ON, checksum=level), sinks=[MemorySink()])

    pairs = options.pairs
    ratios = {
        "repro with digests / without": repro_ratio(Checksum.LOADS, options.sessions, pairs),
        "repro with events only / without": repro_ratio(Checksum.OFF, options.sessions, pairs),
        "call with the gate off / bare function": call_ratio(None, pairs),
        "traced call, events only / bare function": call_ratio(on(Checksum.OFF), pairs),
        "traced call, digests / bare function": call_ratio(on(Checksum.LOADS), pairs),
    }
    rate = events_a_second()
    if options.json:
        print(json.dumps({name: vars(r) for name, r in ratios.items()} | {"events_a_second": rate}))
        return
    for name, ratio in ratios.items():
        print(f"{name:45s} {ratio.median:6.3f}  ({ratio.low:.3f} .. {ratio.high:.3f})")
    print(f"{'events a second into the bus':45s} {rate:6.0f}")


if __name__ == "__main__":
    main()
