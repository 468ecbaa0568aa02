"""Soak the tracer: a million clean tiles over every pool, layout, io backend and write policy.

    python benchmarks/soak.py [--tiles 1000000]

Prints one line per combination, and exits 1 if anything was found, dropped or mismatched.
"""

import argparse
import sys
import time
from dataclasses import dataclass

from hicache_dbg.repro.soak import CASES, SoakCase, soak
from hicache_dbg.tracer.events import Copied, Finding, Health
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

#: Turns of one run.
TURNS = 140


@dataclass(frozen=True)
class Outcome:
    """What the tracer saw in one run; ``other`` tiles are mismatched or skipped, ``lost`` are records."""

    verified: int
    witnessed: int
    other: int
    findings: tuple[Finding, ...]
    lost: int

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.other or self.findings or self.lost)


def traced(case: SoakCase, turns: int, seed: int) -> Outcome:
    """Run one case under the tracer."""
    sink = MemorySink()
    settings = Settings(gate=Gate.ON, checksum=Checksum.LOADS, queue=1 << 18)
    with Runtime.start(settings, sinks=[sink]) as runtime:
        soak(case, turns, seed)
        runtime.flush(60)
        health = runtime.session.bus.health()
    copies = sink.of(Copied)
    return Outcome(
        verified=sum(copy.verified for copy in copies),
        witnessed=sum(copy.witnessed for copy in copies),
        other=sum(copy.mismatched + sum(copy.skipped.values()) for copy in copies),
        findings=tuple(sink.of(Finding)),
        lost=_lost(health),
    )


def _lost(health: Health) -> int:
    return sum(health.dropped.values()) + sum(health.errors.values())


def main() -> int:
    """Run all cases, with new seeds, until there are enough tiles."""
    parser = argparse.ArgumentParser(description="Soak every combination and expect no finding.")
    parser.add_argument("--tiles", type=int, default=1_000_000)
    wanted, began = parser.parse_args().tiles, time.perf_counter()
    tiles, verified, bad, seed = 0, 0, 0, 0
    while tiles < wanted:
        for case in CASES:
            run = traced(case, TURNS, seed)
            tiles += run.verified + run.witnessed
            verified += run.verified
            bad += not run.clean
            if not seed or not run.clean:
                print(f"{case}: verified {run.verified}, witnessed {run.witnessed}", flush=True)
            for finding in run.findings[:3]:
                print(f"  {finding.cls.value}: {finding.message}")
            if run.other or run.lost:
                print(f"  {run.other} tiles mismatched or skipped, {run.lost} records lost")
        seed += 1
    print(
        f"{tiles} clean tiles ({verified} of them verified after a load) in {len(CASES)} combinations, "
        f"{bad} of {seed * len(CASES)} runs not clean, {time.perf_counter() - began:.0f} s, "
        f"{time.process_time():.0f} s of CPU time"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
