"""Whether what the tracer keeps grows with what it has seen: a million records through one session.

    python -m benchmarks.bounded [--records 1000000] [--of sglang|engine]

Pages are given away, backed up, loaded and taken back, over and over, on a few sets of them. Every eighth of the
way all is judged, and what session and attachment keep is counted: objects, their bytes, and the most memory that
the process ever had. Exits 1 if the second half of the way kept more than the first.
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
from hicache_dbg.tracer.bench.reach import Reach, reach
from hicache_dbg.tracer.bench.sglang_ops import SglangOps
from hicache_dbg.tracer.events import Event
from hicache_dbg.tracer.session import Session

STEPS, PAGES = 8, 4
#: Bytes that come and go: accesses that books share are let go of by the thousand.
SLACK = 1 << 20
#: Lives of pages between two looks at whether the bus keeps up.
TOGETHER = 500


class Nowhere:
    """A sink that keeps nothing."""

    name = "nowhere"

    def emit(self, events: Sequence[Event]) -> None:
        """Let them go."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def sglang(records: int) -> Iterator[tuple[int, Session, Reach]]:
    """Submit operations as SGLang's engine does: four records per life of a page set."""
    ops, lives = SglangOps([Nowhere()], layers=2, pages=PAGES), records // 4 // STEPS
    for step in range(STEPS):
        for number in range(lives):
            ops.live(number)
            if number % TOGETHER == 0:
                ops.session.bus.settle(60)
        assert ops.session.bus.flush(60)
        yield 4 * lives * (step + 1), ops.session, reach(ops.session, ops.observer)
    ops.session.close()


def engine(records: int) -> Iterator[tuple[int, Session, Reach]]:
    """Copies of our own engine, with the order of accesses looked at; its records are counted as they come."""
    bus.__dict__["MemorySink"] = Nowhere
    group = PoolGroup.build(
        [index_k(bus.LAYERS, 4, "bf16")],
        device_pages=PAGES * 4,
        host_pages=PAGES * 4,
        layout=Layout.PAGE_FIRST,
    )
    with closing(group), bus.traced(group, ordered=True) as (runtime, state, _):
        seen, push = [0], runtime.session.bus.push

        def counted(record: object) -> bool:
            seen[0] += 1
            return push(record)  # type: ignore[arg-type]

        runtime.session.bus.push = counted  # type: ignore[method-assign]
        for step in range(STEPS):
            number = 0
            while seen[0] < records * (step + 1) // STEPS:
                number += 1
                host, device = state.host.alloc(PAGES), state.device.alloc(PAGES)
                bus.back_up(state, host, device)
                bus.load_again(state, host, device)
                state.host.free(host)
                state.device.free(device)
                if number % TOGETHER == 0:
                    runtime.session.bus.settle(60)
            assert runtime.flush(60)
            yield seen[0], runtime.session, reach(runtime, beyond=[group, state])


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description="See whether the tracer's memory is bounded.")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--of", choices=("sglang", "engine"), default="sglang")
    options = parser.parse_args()
    began, kept = time.perf_counter(), list[int]()
    for records, session, seen in {"sglang": sglang, "engine": engine}[options.of](options.records):
        gc.collect()
        health = session.bus.health()
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        kept.append(seen.nbytes)
        print(
            f"{records} records, {health.events} events: {seen.objects} objects, {seen.nbytes / 1e6:.2f} MB kept; "
            f"{most} MB at most in the process; dropped {health.dropped}, errors {health.errors}, "
            f"{time.perf_counter() - began:.0f} s",
            flush=True,
        )
    return 1 if max(kept[STEPS // 2 :]) > max(kept[: STEPS // 2]) + SLACK else 0


if __name__ == "__main__":
    sys.exit(main())
