"""Measure whether a dead sink slows the copies down.

    python -m benchmarks.dead_sinks [--only "full disk"] [--pairs 20] [--bursts 20]

Each row is the median copy at a steady pace with one sink dead, over the same with every sink alive,
as the median of pairs. A row takes about a minute.
"""

import argparse
import logging
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.sink_rig import receivers

from hicache_dbg.exporters.recording import RecordingSink
from hicache_dbg.exporters.stderr import StderrSink
from hicache_dbg.tracer.bench.event import EVENT
from hicache_dbg.tracer.bench.overhead import one_copy, paired
from hicache_dbg.tracer.bench.table import Row, markdown, median
from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.settings import Lines, Listen, Settings
from hicache_dbg.tracer.sink import Sink
from hicache_dbg.tracer.sinks import build_sinks, run_id

BURST = 25
PAUSE_S = 0.05
CLOSE_S = 0.2
SINKS = ("journald", "otel", "prometheus", "recording", "stderr")


@dataclass(frozen=True, slots=True)
class Case:
    """One way for a sink to be dead, and what builds the sinks of a run in which it is."""

    name: str
    make: Callable[[], list[Sink]]


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable, and restore it afterwards."""
    before = os.environ[name]
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ[name] = before


def sinks_of(settings: Settings) -> list[Sink]:
    """Build the sinks of a run under ``settings``."""
    return build_sinks(settings, lambda: ()).sinks


def others(settings: Settings, name: str) -> list[Sink]:
    """Build the sinks except for the one called ``name``."""
    return sinks_of(replace(settings, sinks=tuple(sink for sink in SINKS if sink != name)))


def dead_collector(alive: Settings) -> list[Sink]:
    """Build the sinks with an OTLP endpoint that refuses connections."""
    with variable("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9"):
        return sinks_of(alive)


def full_disk(alive: Settings, folder: Path) -> list[Sink]:
    """Build the sinks with a recording whose disk is full."""
    sink = RecordingSink(folder, run_id(0))
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, sink._part._file)  # noqa: SLF001 - each write fails with ENOSPC, without a mount
    os.close(full)
    return [*others(alive, "recording"), sink]


def broken_terminal(alive: Settings, stack: ExitStack) -> list[Sink]:
    """Build the sinks with a standard error whose reader is gone."""
    reading, writing = os.pipe()
    os.close(reading)
    stack.callback(os.close, writing)
    stream = os.fdopen(writing, "w", buffering=1, closefd=False)
    return [*others(alive, "stderr"), StderrSink(Lines.ALL, stream=stream)]


def taken_port(stack: ExitStack) -> Listen:
    """Occupy a port, and return it."""
    listener = stack.enter_context(socket.socket())
    listener.bind(("", 0))
    listener.listen()
    return Listen(listener.getsockname()[1])


def cases(alive: Settings, stack: ExitStack, folder: Path) -> tuple[Case, ...]:
    """Return a case for every way in which a sink dies; in the first none does, to show the noise."""
    unread = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    unread.bind(str(folder / "unread"))
    (folder / "file").touch()
    absent = replace(alive, journald_socket=folder / "absent")
    full = replace(alive, journald_socket=folder / "unread")
    nowhere = replace(alive, directory=folder / "file")
    taken = replace(alive, prometheus_port=taken_port(stack))
    return (
        Case("none dead: the noise", lambda: sinks_of(alive)),
        Case("journald, no socket", lambda: sinks_of(absent)),
        Case("journald, full socket", lambda: sinks_of(full)),
        Case("otel, connection refused", lambda: dead_collector(alive)),
        Case("recording, no folder", lambda: sinks_of(nowhere)),
        Case("recording, full disk", lambda: full_disk(alive, folder)),
        Case("prometheus, port in use", lambda: sinks_of(taken)),
        Case("stderr, closed", lambda: broken_terminal(alive, stack)),
    )


def small_copy() -> Callable[[], None]:
    """Return a backup of 64 KiB, which fits the CPU caches, so other work disturbs it less."""
    engine, op = one_copy(pages=4, layers=1)
    return lambda: engine.backup(op)


def median_copy(make: Callable[[], list[Sink]], bursts: int) -> float:
    """Return the seconds of the median copy, each published to a bus with its own sinks.

    Copies come in bursts, 500 a second in all: single ones would measure how the CPU wakes up.
    """
    bus = Bus(make(), capacity=1 << 16, errors=InternalErrors())
    copy, took = small_copy(), []
    for _ in range(bursts):
        for _ in range(BURST):
            began = time.perf_counter()
            copy()
            bus.publish(EVENT)
            took.append(time.perf_counter() - began)
        time.sleep(PAUSE_S)
    bus.close(CLOSE_S)
    return statistics.median(took)


def dead_rows(only: str, pairs: int, bursts: int, folder: Path, journal: Path) -> Iterator[Row]:
    """Yield the ratios of the median copy with one sink dead to that with all alive."""
    alive = Settings(sinks=SINKS, directory=folder / "recordings", journald_socket=journal)
    with ExitStack() as stack:
        chosen = [case for case in cases(alive, stack, folder) if only in case.name]
        for case in chosen:
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
    parser = argparse.ArgumentParser(description="Measure whether a dead sink slows copies down.")
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--bursts", type=int, default=20)
    options = parser.parse_args()
    logging.disable()  # the dead sinks warn
    with (
        receivers() as (folder, journal),
        Path(os.devnull).open("w") as nowhere,
        redirect_stderr(nowhere),
    ):
        rows = list(dead_rows(options.only, options.pairs, options.bursts, folder, journal))
    print(markdown(rows))


if __name__ == "__main__":
    main()
