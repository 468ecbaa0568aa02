"""A soak: a million clean tiles over every pool, layout, io backend and write policy, and no finding.

    python benchmarks/soak.py [--tiles 1000000]

Prints a line a combination and exits 1 if anything was found, dropped or mismatched.
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

#: Turns between two looks at how many tiles there were.
TURNS = 140


@dataclass(frozen=True)
class Seen:
    """What the tracer saw of a case."""

    verified: int
    witnessed: int
    other: int
    findings: tuple[Finding, ...]
    lost: int

    @property
    def clean(self) -> bool:
        """Whether there is nothing to say."""
        return not (self.other or self.findings or self.lost)


def traced(case: SoakCase, turns: int, seed: int) -> Seen:
    """Soak one case under the tracer."""
    sink = MemorySink()
    settings = Settings(gate=Gate.ON, checksum=Checksum.LOADS, queue=1 << 18)
    with Runtime.start(settings, sinks=[sink]) as runtime:
        soak(case, turns, seed)
        runtime.flush(60)
        health = runtime.session.bus.health()
    copies = sink.of(Copied)
    return Seen(
        verified=sum(copy.verified for copy in copies),
        witnessed=sum(copy.witnessed for copy in copies),
        other=sum(copy.mismatched + sum(copy.skipped.values()) for copy in copies),
        findings=tuple(sink.of(Finding)),
        lost=_lost(health),
    )


def _lost(health: Health) -> int:
    return sum(health.dropped.values()) + sum(health.errors.values())


def main() -> int:
    """Go through the cases until there were enough tiles."""
    parser = argparse.ArgumentParser(description="Soak every combination and find nothing.")
    parser.add_argument("--tiles", type=int, default=1_000_000)
    wanted, began = parser.parse_args().tiles, time.perf_counter()
    tiles, verified, bad, seed = 0, 0, 0, 0
    while tiles < wanted:
        for case in CASES:
            seen = traced(case, TURNS, seed)
            tiles += seen.verified + seen.witnessed
            verified += seen.verified
            bad += not seen.clean
            if not seed or not seen.clean:
                print(f"{case}: verified {seen.verified}, witnessed {seen.witnessed}", flush=True)
            for finding in seen.findings[:3]:
                print(f"  {finding.cls.value}: {finding.message}")
            if seen.other or seen.lost:
                print(f"  {seen.other} tiles mismatched or skipped, {seen.lost} records lost")
        seed += 1
    print(
        f"{tiles} clean tiles ({verified} of them verified after a load) in {len(CASES)} combinations, "
        f"{bad} of {seed * len(CASES)} runs with anything to say, {time.perf_counter() - began:.0f} s, "
        f"{time.process_time():.0f} s of processor time"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
