"""What tracing our own engine costs on the CPU: a whole repro, one call, and the bus."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import IoBackend, Layout
from hicache_dbg.pools.host import Mirror, host_geometry_like, host_pool_for
from hicache_dbg.pools.indices import Indices
from hicache_dbg.pools.kinds import index_k
from hicache_dbg.pools.transfer import CopyOp, PoolCopy, TransferEngine
from hicache_dbg.repro.config import RunConfig
from hicache_dbg.repro.run import run
from hicache_dbg.tracer.bench.table import Row, median, seconds
from hicache_dbg.tracer.events import Copied, Op, Tier
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

T = TypeVar("T")


class Took(NamedTuple):
    """What a run took, in seconds: by the clock on the wall, and of all threads on their processors."""

    wall: float
    processor: float


def in_pairs(base: Callable[[], T], other: Callable[[], T], pairs: int) -> Iterator[tuple[T, T]]:
    """What both gave, each pair taken back to back in alternating order."""
    for pair in range(pairs):
        if pair % 2:
            b = other()
            a = base()
        else:
            a = base()
            b = other()
        yield a, b


def paired(base: Callable[[], float], other: Callable[[], float], pairs: int) -> list[float]:
    """The ratios other / base in seconds, pair by pair."""
    return [b / a for a, b in in_pairs(base, other, pairs)]


def repeat(call: Callable[[], object], times: int) -> None:
    """``call``, again and again."""
    for _ in range(times):
        call()


def traced(level: Checksum, work: Callable[[], T]) -> T:
    """``work`` under a tracer at ``level``, with a sink in memory."""
    with Runtime.start(Settings(gate=Gate.ON, checksum=level), sinks=[MemorySink()]):
        return work()


def repro_ratios(level: Checksum, sessions: int, pairs: int) -> Iterator[Took]:
    """The tiered part of a repro under a tracer over the same part without one, pair by pair.

    Beside other work the wall clock says little; processor time then says what tracing adds.
    """
    config = RunConfig(sessions=sessions)
    truth = run(config).truth

    def tiered() -> Took:
        began = time.process_time()
        result = run(config, truth=truth)
        processor = time.process_time() - began
        assert result.tiers_used
        assert not result.sessions.corrupted
        return Took(result.wall_seconds, processor)

    for bare, under in in_pairs(tiered, lambda: traced(level, tiered), pairs):
        yield Took(under.wall / bare.wall, under.processor / bare.processor)


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


def call_ratios(start: Callable[[], Runtime] | None, pairs: int, calls: int = 200) -> list[float]:
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


def overhead_rows(pairs: int = 7, sessions: int = 12) -> Iterator[Row]:
    """Whole runs, single calls, and how fast the bus takes events."""

    def on(level: Checksum) -> Callable[[], Runtime]:
        return lambda: Runtime.start(Settings(gate=Gate.ON, checksum=level), sinks=[MemorySink()])

    digests, events = (
        list(repro_ratios(level, sessions, pairs)) for level in (Checksum.LOADS, Checksum.OFF)
    )
    cases: tuple[tuple[str, list[float], str], ...] = (
        ("repro with digests", [took.wall for took in digests], "<= 1.10"),
        ("repro with digests, processor time", [took.processor for took in digests], ""),
        ("repro, events only", [took.wall for took in events], ""),
        ("repro, events only, processor time", [took.processor for took in events], ""),
        ("call, gate off (the same object)", call_ratios(None, pairs), ""),
        ("call, events only", call_ratios(on(Checksum.OFF), pairs), ""),
        ("call, digests", call_ratios(on(Checksum.LOADS), pairs), ""),
    )
    for case, ratios, goal in cases:
        spread = f"min {min(ratios):.3f} max {max(ratios):.3f} of {pairs} pairs"
        yield Row("traced over bare", case, median(ratios), spread, goal)
    yield Row("bus", "events pushed and delivered", None, f"{events_a_second():.0f} a second")
