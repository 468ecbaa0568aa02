"""What each sink costs an event: CPU time of the thread that pays, over a bare function call.

    python -m benchmarks.sinks [--events 20000]

Only the first row is paid by the host's own threads.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator
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
    """Microseconds of this thread's CPU an event, the best of three."""
    best = float("inf")
    for _ in range(3):
        begun = time.thread_time()
        work()
        best = min(best, time.thread_time() - begun)
    return best / events * 1e6


def cost_rows(events: int, folder: Path, journal: Path) -> Iterator[Row]:
    """Yield what an event costs the thread that pays for it, by sink."""
    batch = [msgspec.structs.replace(EVENT, op_id=n + 1, h=n) for n in range(events)]

    def bare(_event: Copied) -> None:
        """Do nothing: the unit of all ratios."""

    def one_by_one(call: Callable[[Copied], object]) -> Callable[[], None]:
        def work() -> None:
            for event in batch:
                call(event)

        return work

    def in_batches(sink: Sink) -> Callable[[], None]:
        def work() -> None:
            for start in range(0, events, BATCH):
                sink.emit(batch[start : start + BATCH])

        return work

    yardstick = cpu_us(one_by_one(bare), events)
    bus = Bus((), capacity=4 * events, errors=InternalErrors())
    cases: list[tuple[str, str, Callable[[], None]]] = [
        ("event", "bus: append, on the host's thread", one_by_one(bus.publish))
    ]
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115 - closed with the sinks below
    sinks = (
        ("counter", PrometheusSink(CollectorRegistry())),
        ("span", OtelSink()),
        ("line", JournaldSink(journal)),
        ("line", StderrSink(Lines.ALL, stream=nowhere)),
        ("event", RecordingSink(folder, "costs")),
    )
    cases += [(what, f"{sink.name}: on its own thread", in_batches(sink)) for what, sink in sinks]
    yield Row("bare call", "one argument, nothing done", 1.0, f"{yardstick:.3f} us")
    for what, case, work in cases:
        took = cpu_us(work, events)
        yield Row(what, case, round(took / yardstick, 1), f"{took:.2f} us")
    bus.close()
    for _, sink in sinks:
        sink.close()
    nowhere.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure what the sinks cost.")
    parser.add_argument("--events", type=int, default=20_000)
    options = parser.parse_args()
    with receivers() as (folder, journal):
        print(markdown(cost_rows(options.events, folder, journal)))


if __name__ == "__main__":
    main()
