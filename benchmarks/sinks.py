"""Measure what an event costs each sink: CPU time of the thread that pays, over a bare function call.

    python -m benchmarks.sinks [--events 20000]

Only the row of the bus is paid by the host's own threads.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
from benchmarks.sink_rig import receivers
from prometheus_client import CollectorRegistry

from hicache_dbg.exporters.journald import JournaldSink
from hicache_dbg.exporters.otel import OtelSink
from hicache_dbg.exporters.prometheus import PrometheusSink
from hicache_dbg.exporters.recording import RecordingSink
from hicache_dbg.exporters.stderr import StderrSink
from hicache_dbg.tracer.bench.event import EVENT
from hicache_dbg.tracer.bench.table import Row, markdown
from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.events import Copied
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.settings import Lines
from hicache_dbg.tracer.sink import Sink

BATCH = 512


def cpu_us(work: Callable[[], object], events: int) -> float:
    """Return the CPU microseconds of this thread per event, in the best of three runs."""
    best = float("inf")
    for _ in range(3):
        begun = time.thread_time()
        work()
        best = min(best, time.thread_time() - begun)
    return best / events * 1e6


def one_by_one(call: Callable[[Copied], object], events: Sequence[Copied]) -> None:
    """Call ``call`` with each event."""
    for event in events:
        call(event)


def in_batches(sink: Sink, events: Sequence[Copied]) -> None:
    """Emit the events in batches, as the bus does."""
    for start in range(0, len(events), BATCH):
        sink.emit(events[start : start + BATCH])


def bare(_event: Copied) -> None:
    """Do nothing: the unit of all ratios."""


def cost_rows(count: int, folder: Path, journal: Path) -> Iterator[Row]:
    """Yield what an event costs the thread that pays for it, by sink."""
    events = [msgspec.structs.replace(EVENT, op_id=n + 1, h=n) for n in range(count)]
    unit = cpu_us(partial(one_by_one, bare, events), count)
    yield Row("bare call", "one argument, nothing done", 1.0, f"{unit:.3f} us")
    with closing(Bus((), capacity=4 * count, errors=InternalErrors())) as bus:
        took = cpu_us(partial(one_by_one, bus.publish, events), count)
        yield _row("event", "bus: append, on the host's thread", took, unit)
    with Path(os.devnull).open("w") as nowhere:
        sinks: tuple[tuple[str, Sink], ...] = (
            ("counter", PrometheusSink(CollectorRegistry())),
            ("span", OtelSink()),
            ("line", JournaldSink(journal)),
            ("line", StderrSink(Lines.ALL, stream=nowhere)),
            ("event", RecordingSink(folder, "costs")),
        )
        for what, sink in sinks:
            took = cpu_us(partial(in_batches, sink, events), count)
            yield _row(what, f"{sink.name}: on its own thread", took, unit)
            sink.close()


def _row(what: str, case: str, took_us: float, unit_us: float) -> Row:
    return Row(what, case, round(took_us / unit_us, 1), f"{took_us:.2f} us")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure what the sinks cost.")
    parser.add_argument("--events", type=int, default=20_000)
    options = parser.parse_args()
    with receivers() as (folder, journal):
        print(markdown(cost_rows(options.events, folder, journal)))


if __name__ == "__main__":
    main()
