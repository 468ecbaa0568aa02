"""What each sink costs an event, and whether a dead sink is felt by the copies. Ratios of one run.

    python benchmarks/sinks.py [--pairs 20] [--events 20000] [--bursts 20]

First table: CPU time of the thread that pays, an event, over a bare function call. Only the first row
is paid by the host's own threads. Second table: the median copy at a steady pace with one sink dead,
over the same with every sink alive (medians of pairs; the goal is at most 1.01). A process that reads
and forgets stands for journald, another for the collector, so neither root nor a network is needed.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from prometheus_client import CollectorRegistry

from hicache_dbg.exporters.journald import JournaldSink
from hicache_dbg.exporters.otel import OtelSink
from hicache_dbg.exporters.prometheus import PrometheusSink
from hicache_dbg.exporters.recording import RecordingSink
from hicache_dbg.exporters.stderr import StderrSink
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import IoBackend, Layout
from hicache_dbg.pools.host import Mirror, host_geometry_like, host_pool_for
from hicache_dbg.pools.indices import Indices
from hicache_dbg.pools.kinds import index_k
from hicache_dbg.pools.transfer import CopyOp, PoolCopy, TransferEngine
from hicache_dbg.tracer.bench.overhead import paired
from hicache_dbg.tracer.bench.table import Row, markdown, median
from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.events import Copied, Op, Tier
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.settings import Lines, Listen, Settings
from hicache_dbg.tracer.sink import Sink
from hicache_dbg.tracer.sinks import build_sinks, run_id

BATCH = 512
BURST = 25
PAUSE_S = 0.05
CLOSE_S = 0.2
SINKS = ("journald", "otel", "prometheus", "recording", "stderr")

READER = """
import socket, sys
reader = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
reader.bind(sys.argv[1])
print("ready", flush=True)
while reader.recv(1 << 20):
    pass
"""

COLLECTOR = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""

EVENT = Copied(
    time_ns=1_700_000_000_000_000_000,
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
    op_id=1,
)


@contextmanager
def stand_in(script: str, *arguments: str) -> Iterator[str]:
    """A process that takes what is sent to it; the first line that it says."""
    command = [sys.executable, "-c", script, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def cpu_us(work: Callable[[], object], events: int) -> float:
    """Microseconds of this thread's CPU an event, the best of three."""
    best = float("inf")
    for _ in range(3):
        begun = time.thread_time()
        work()
        best = min(best, time.thread_time() - begun)
    return best / events * 1e6


def cost_rows(events: int, folder: Path, journal: Path) -> Iterator[Row]:
    """What an event costs the thread that pays for it, by sink."""
    batch = [msgspec.structs.replace(EVENT, op_id=n + 1, h=n) for n in range(events)]

    def bare(_event: Copied) -> None:
        """The yardstick."""

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


@dataclass(frozen=True, slots=True)
class Case:
    """One way for a sink to be dead: the sinks that replace those that live."""

    name: str
    make: Callable[[], list[Sink]]


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """An environment variable for a while."""
    before = os.environ[name]
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ[name] = before


def sinks_of(settings: Settings) -> list[Sink]:
    """What a run under ``settings`` has."""
    return build_sinks(settings, lambda: ()).sinks


def others(settings: Settings, name: str) -> list[Sink]:
    """The living sinks but one."""
    left = tuple(sink for sink in SINKS if sink != name)
    return sinks_of(replace(settings, sinks=left))


def dead_collector(alive: Settings) -> list[Sink]:
    """Nobody on the port."""
    with variable("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9"):
        return sinks_of(alive)


def full_disk(alive: Settings, folder: Path) -> list[Sink]:
    """A recording whose file takes nothing more."""
    sink = RecordingSink(folder, run_id(0))
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, sink._part._file)  # noqa: SLF001 - a real device, not a mounted file system
    os.close(full)
    return [*others(alive, "recording"), sink]


def broken_terminal(alive: Settings, stack: ExitStack) -> list[Sink]:
    """Standard error that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    stack.callback(os.close, writing)
    stream = os.fdopen(writing, "w", buffering=1, closefd=False)
    return [*others(alive, "stderr"), StderrSink(Lines.ALL, stream=stream)]


def taken_port(stack: ExitStack) -> Listen:
    """A port that somebody listens on."""
    other = stack.enter_context(socket.socket())
    other.bind(("", 0))
    other.listen()
    return Listen(other.getsockname()[1])


def cases(alive: Settings, stack: ExitStack, folder: Path) -> tuple[Case, ...]:
    """Every sink, dead in the ways that happen; the first is the noise of the machine."""
    deaf = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    deaf.bind(str(folder / "deaf"))
    (folder / "file").touch()
    absent = replace(alive, journald_socket=folder / "absent")
    full = replace(alive, journald_socket=folder / "deaf")
    nowhere = replace(alive, directory=folder / "file")
    taken = replace(alive, prometheus_port=taken_port(stack))
    return (
        Case("none dead: the noise", lambda: sinks_of(alive)),
        Case("journald, no socket", lambda: sinks_of(absent)),
        Case("journald, full socket", lambda: sinks_of(full)),
        Case("otel, nobody on the port", lambda: dead_collector(alive)),
        Case("recording, no folder", lambda: sinks_of(nowhere)),
        Case("recording, full disk", lambda: full_disk(alive, folder)),
        Case("prometheus, port in use", lambda: sinks_of(taken)),
        Case("stderr, closed", lambda: broken_terminal(alive, stack)),
    )


def small_copy() -> Callable[[], None]:
    """A backup of 64 KiB: it stays in the caches, so that other work on the machine shows less."""
    pool = DevicePool(index_k(1, 64, "bf16"), 8)
    mirror = Mirror(pool, host_pool_for(host_geometry_like(pool), 8, Layout.PAGE_FIRST))
    pages = np.arange(4)
    copy = PoolCopy(
        mirror=mirror,
        host=Indices.pages(pages, mirror.host.geometry),
        device=Indices.pages(pages, pool.geometry),
        token_granular=False,
        io_backend=IoBackend.KERNEL,
        layers=(0,),
    )
    engine, op = TransferEngine(), CopyOp(1, "backup", (copy,), np.ones(4, np.uint32))
    return lambda: engine.backup(op)


def median_copy(make: Callable[[], list[Sink]], bursts: int) -> float:
    """Seconds of the median copy, each told to a bus with sinks of its own.

    Copies come in bursts, 500 a second in all: one alone would measure how the processor wakes up.
    """
    bus = Bus(make(), capacity=1 << 16, errors=InternalErrors())
    copy, took = small_copy(), []
    for _ in range(bursts):
        for _ in range(BURST):
            begun = time.perf_counter()
            copy()
            bus.publish(EVENT)
            took.append(time.perf_counter() - begun)
        time.sleep(PAUSE_S)
    bus.close(CLOSE_S)
    return statistics.median(took)


def dead_rows(pairs: int, bursts: int, folder: Path, journal: Path) -> Iterator[Row]:
    """The median copy with a sink dead, over the same with all alive."""
    alive = Settings(sinks=SINKS, directory=folder / "recordings", journald_socket=journal)
    with ExitStack() as stack:
        for case in cases(alive, stack, folder):
            ratios = paired(
                partial(median_copy, partial(sinks_of, alive), bursts),
                partial(median_copy, case.make, bursts),
                pairs,
            )
            low, _, high = statistics.quantiles(ratios, n=4)
            spread = f"half of {pairs} pairs from {low:.3f} to {high:.3f}"
            yield Row("copy, one dead over all alive", case.name, median(ratios), spread, "<= 1.01")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure what the sinks cost.")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--bursts", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, journal = Path(name), Path(name) / "journal"
        stack.enter_context(stand_in(READER, str(journal)))
        port = stack.enter_context(stand_in(COLLECTOR))
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{port}"
        print(markdown(cost_rows(options.events, folder, journal)))
        kept, sys.stderr = sys.stderr, stack.enter_context(Path(os.devnull).open("w"))
        rows = list(dead_rows(options.pairs, options.bursts, folder, journal))
        sys.stderr = kept
        print(markdown(rows))


if __name__ == "__main__":
    main()
