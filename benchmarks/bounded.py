"""Check that the tracer's memory is bounded: a million records through one session.

    python -m benchmarks.bounded [--records 1000000] [--of sglang|engine]

A few sets of pages are allocated, backed up, loaded and freed over and over. After every eighth of the records the bus
is drained, and the objects that session and attachment hold are counted, with their bytes and the process's peak
memory. Exits 1 if more was held at some point of the second half than at any point of the first.
"""

import argparse
import gc
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing

from benchmarks import bus

from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.kinds import index_k
from hicache_dbg.pools.state import CacheState
from hicache_dbg.tracer.bench.reach import Reach, reach
from hicache_dbg.tracer.bench.sglang_ops import SglangOps
from hicache_dbg.tracer.events import Event
from hicache_dbg.tracer.session import Session

STEPS, PAGES = 8, 4
#: Bytes that come and go: the accesses that books share are dropped in batches of a thousand.
SLACK = 1 << 20
#: Lives of a page set between two waits for the bus.
BATCH = 500


class Nowhere:
    """A sink that keeps nothing."""

    name = "nowhere"

    def emit(self, events: Sequence[Event]) -> None:
        """Drop them."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def sglang(records: int) -> Iterator[tuple[int, Session, Reach]]:
    """Submit operations as SGLang's engine does: four records per life of a page set."""
    ops, lives = SglangOps([Nowhere()], layers=2, pages=PAGES), records // 4 // STEPS
    for step in range(STEPS):
        for number in range(lives):
            ops.live(number)
            if number % BATCH == 0:
                ops.session.bus.settle(60)
        assert ops.session.bus.flush(60)
        yield 4 * lives * (step + 1), ops.session, reach(ops.session, ops.observer)
    ops.session.close()


def engine(records: int) -> Iterator[tuple[int, Session, Reach]]:
    """Copy with our own engine, with the order of accesses checked; count its records as they are pushed."""
    bus.__dict__["MemorySink"] = Nowhere
    group = PoolGroup.build(
        [index_k(bus.LAYERS, 4, "bf16")],
        device_pages=PAGES * 4,
        host_pages=PAGES * 4,
        layout=Layout.PAGE_FIRST,
    )
    with closing(group), bus.traced(group, ordered=True) as (runtime, state, _):
        pushed, push = [0], runtime.session.bus.push

        def counted(record: object) -> bool:
            pushed[0] += 1
            return push(record)  # type: ignore[arg-type]

        runtime.session.bus.push = counted  # type: ignore[method-assign]
        for step in range(STEPS):
            number = 0
            while pushed[0] < records * (step + 1) // STEPS:
                number += 1
                _live(state)
                if number % BATCH == 0:
                    runtime.session.bus.settle(60)
            assert runtime.flush(60)
            yield pushed[0], runtime.session, reach(runtime, beyond=[group, state])


def _live(state: CacheState) -> None:
    """Run the whole life of a page set: allocate, back up, load, free."""
    host, device = state.host.alloc(PAGES), state.device.alloc(PAGES)
    bus.back_up(state, host, device)
    bus.load_again(state, host, device)
    state.host.free(host)
    state.device.free(device)


def main() -> int:
    """Run and print; exit 1 if the memory held grew."""
    parser = argparse.ArgumentParser(description="Check that the tracer's memory is bounded.")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--of", choices=("sglang", "engine"), default="sglang")
    options = parser.parse_args()
    began, held = time.perf_counter(), list[int]()
    for records, session, found in {"sglang": sglang, "engine": engine}[options.of](
        options.records
    ):
        gc.collect()
        health = session.bus.health()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        held.append(found.nbytes)
        print(
            f"{records} records, {health.events} events: {found.objects} objects, {found.nbytes / 1e6:.2f} MB held; "
            f"process peak {peak} MB; dropped {health.dropped}, errors {health.errors}, "
            f"{time.perf_counter() - began:.0f} s",
            flush=True,
        )
    return 1 if max(held[STEPS // 2 :]) > max(held[: STEPS // 2]) + SLACK else 0


if __name__ == "__main__":
    sys.exit(main())
