"""Measure how many copies per second the bus's thread judges with every check on, on one core.

    python benchmarks/bus.py [--copies 4000]

The notes and records of many copies wait in the ring; then the bus's thread takes them, and its CPU
time is read before and after. Every other copy is a load that opens one gate per layer and is
reported at its end, as in the engine's own workers. Digests are compared, and ownership, components,
completion, identity and, once the model has declared an access, order are checked. The goal is 10,000
copies of 16 pages per second, in the slowest of all runs. The last rows are the memory of the books.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.kinds import index_k
from hicache_dbg.pools.state import CacheState
from hicache_dbg.pools.ticket import Load
from hicache_dbg.tracer.attach.hicache import HiCacheAttachment
from hicache_dbg.tracer.attach.hicache_streams import Touch
from hicache_dbg.tracer.bench.table import Row, markdown, median
from hicache_dbg.tracer.checks.ownership import Ownership
from hicache_dbg.tracer.events import Copied, Event, Finding
from hicache_dbg.tracer.ledger import Book
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

GOAL = 10_000
OVER = "judged over 10,000 a second"
LAYERS = 4
#: Records that wait before the clock runs, at most.
QUEUE = 1 << 20


@dataclass
class Clock:
    """A record that blocks the bus until ``going`` is set, and then reads the thread's CPU time."""

    going: bool = False
    seconds: float = 0.0

    def ready(self) -> bool:
        """Return whether the bus may go on."""
        return self.going

    def events(self) -> Iterator[Event]:
        """Return no events, and note the processor time of the bus thread so far."""
        self.seconds = time.thread_time()
        return iter(())


def back_up(state: CacheState, host: Ids, device: Ids) -> None:
    """Execute a backup, from its submission to its end."""
    with state.changed:
        op = state.begin("backup", host, device)
    state.engine.backup(op)
    with state.changed:
        state.end(host, device)


def load_again(state: CacheState, host: Ids, device: Ids) -> None:
    """Execute a load, with one gate per layer and a report at its end."""
    with state.changed:
        op = state.begin("load", host, device)
    load = Load(op.op_id, host, device, state.group.layer_ids)
    state.engine.load(op, load.open)
    with state.changed:
        state.end(host, device)
    load.finish()


def copies(state: CacheState, count: int, pages: int) -> None:
    """Back pages up and load them again, ``count`` copies in all."""
    host, device = state.host.alloc(pages), state.device.alloc(pages)
    for number in range(count):
        (load_again if number % 2 else back_up)(state, host, device)
    state.host.free(host)
    state.device.free(device)


@contextmanager
def traced(group: PoolGroup, *, ordered: bool) -> Iterator[tuple[Runtime, CacheState, MemorySink]]:
    """Yield an engine under the tracer; with ``ordered`` the model declares what it accesses."""
    sink = MemorySink()
    settings = Settings(gate=Gate.ON, checksum=Checksum.LOADS, queue=QUEUE)
    with (
        Runtime.start(settings, sinks=[sink]) as runtime,
        closing(HiCacheController(group)) as controller,
    ):
        attachment = runtime.attachment
        assert isinstance(attachment, HiCacheAttachment)
        if ordered:
            device = group.mirrors[0].device
            touch = Touch(device, tuple(range(LAYERS)), range(device.pages), writes=True)
            attachment.lifetimes.host_access("write", (touch,))
        yield runtime, controller._state, sink  # noqa: SLF001 - below the controller's queues


def copies_per_second(pages: int, count: int, *, ordered: bool) -> float:
    """Return how many copies of ``pages`` pages the bus's thread judges per second."""
    group = PoolGroup.build(
        [index_k(LAYERS, 4, "bf16")],
        device_pages=2 * pages,
        host_pages=2 * pages,
        layout=Layout.PAGE_FIRST,
    )
    with closing(group), traced(group, ordered=ordered) as (runtime, state, sink):
        first, last = Clock(), Clock(going=True)
        runtime.session.bus.push(first)
        copies(state, count, pages)
        runtime.session.bus.push(last)
        first.going = True
        runtime.flush(600)
        assert len(sink.of(Copied)) == count
        assert not sink.of(Finding)
        assert sum(event.verified for event in sink.of(Copied)) == count // 2 * pages * LAYERS
    return count / (last.seconds - first.seconds)


def rows(count: int) -> Iterator[Row]:
    """Yield a row for each number of pages, with and without checking the order of accesses."""
    slowest = float("inf")
    for ordered in (False, True):
        for pages in (1, 16, 256):
            rates = [copies_per_second(pages, count, ordered=ordered) for _ in range(5)]
            case = f"{pages} pages, {'order checked' if ordered else 'no kernel declared'}"
            spread = (
                f"{median(rates):.0f} copies a second (min {min(rates):.0f} max {max(rates):.0f})"
            )
            yield Row(OVER, case, median(rates) / GOAL, spread)
            slowest = min(slowest, *rates) if pages == 16 else slowest
    case = "16 pages, the slowest run"
    yield Row(OVER, case, slowest / GOAL, f"{slowest:.0f} copies a second", ">= 1.0")


def memory_rows(layers: int = 61, pages: int = 10_000) -> Iterator[Row]:
    """Measure the host memory of the books."""
    ledger, ownership = Book(layers, pages).nbytes, Ownership("host", pages).nbytes
    tile = f"{ledger / (layers * pages):.2f} B a tile of {layers} layers, 8 of them its digest"
    yield Row("memory", "ledger", None, tile)
    yield Row("memory", "ownership", None, f"{ownership / pages:.0f} B per page and tier")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure how fast the bus judges copies.")
    parser.add_argument("--copies", type=int, default=4000)
    options = parser.parse_args()
    print(markdown([*rows(options.copies), *memory_rows()]))


if __name__ == "__main__":
    main()
