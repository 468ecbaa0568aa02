"""Measure what tracing our own engine costs on the CPU: a whole repro, one call, and the bus."""

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
from hicache_dbg.tracer.bench.event import EVENT
from hicache_dbg.tracer.bench.table import Row, median, seconds
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

T = TypeVar("T")


class Took(NamedTuple):
    """The duration of a run in seconds: wall-clock time, and CPU time of all threads."""

    wall: float
    processor: float


def in_pairs(base: Callable[[], T], other: Callable[[], T], pairs: int) -> Iterator[tuple[T, T]]:
    """Yield the results of both, run back to back in alternating order."""
    for pair in range(pairs):
        if pair % 2:
            b = other()
            a = base()
        else:
            a = base()
            b = other()
        yield a, b


def paired(base: Callable[[], float], other: Callable[[], float], pairs: int) -> list[float]:
    """Return the ratios other / base, pair by pair."""
    return [b / a for a, b in in_pairs(base, other, pairs)]


def repeat(call: Callable[[], object], times: int) -> None:
    """Call ``call`` ``times`` times."""
    for _ in range(times):
        call()


def traced(level: Checksum, work: Callable[[], T]) -> T:
    """Run ``work`` under a tracer at ``level`` with an in-memory sink."""
    with Runtime.start(Settings(gate=Gate.ON, checksum=level), sinks=[MemorySink()]):
        return work()


def repro_ratios(level: Checksum, sessions: int, pairs: int) -> Iterator[Took]:
    """Yield the ratios of the tiered part of a repro with and without a tracer, pair by pair.

    On a loaded machine wall-clock time means little; CPU time still shows what tracing adds.
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


def one_copy(pages: int = 16, layers: int = 4) -> tuple[TransferEngine, CopyOp]:
    """Return an engine and a backup of ``pages`` pages of index-K, of 16 KiB a layer each."""
    pool = DevicePool(index_k(layers, 64, "bf16"), 64)
    mirror = Mirror(pool, host_pool_for(host_geometry_like(pool), 64, Layout.PAGE_FIRST))
    ids = np.arange(pages)
    copy = PoolCopy(
        mirror=mirror,
        host=Indices.pages(ids, mirror.host.geometry),
        device=Indices.pages(ids, pool.geometry),
        token_granular=False,
        io_backend=IoBackend.KERNEL,
        layers=tuple(range(layers)),
    )
    return TransferEngine(), CopyOp(1, "backup", (copy,), np.ones(pages, np.uint32))


def call_ratios(start: Callable[[], Runtime] | None, pairs: int, calls: int = 200) -> list[float]:
    """Return the ratios of ``TransferEngine.backup`` under ``start`` to the unwrapped function."""
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


def events_per_second(count: int = 200_000) -> float:
    """Return the rate of complete events through the bus to an in-memory sink, per second."""
    sink = MemorySink()
    runtime = Runtime.start(Settings(gate=Gate.ON, queue=count + 1), sinks=[sink])

    def push() -> None:
        for _ in range(count):
            runtime.session.bus.publish(EVENT)
        assert runtime.flush(60)

    took = seconds(push)
    assert len(sink.events) == count
    runtime.stop()
    return count / took


def overhead_rows(pairs: int = 7, sessions: int = 12) -> Iterator[Row]:
    """Measure whole runs, single calls, and the throughput of the bus."""

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
    yield Row("bus", "events pushed and delivered", None, f"{events_per_second():.0f} a second")
