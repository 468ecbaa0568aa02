"""Run ``hicache-dbg repro`` on a GPU: every pool set in every layout with every io backend it has.

    python benchmarks/repro_gpu.py [--device cuda] [--sessions 8] [--jobs 4] [more options of repro]

Prints one line per run: exit code, corrupted sessions, tiles by outcome, seconds. Exits 1 unless all
are clean, with pages loaded back and verified. ``--jobs`` runs share the GPU; use 1 to compare times.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from hicache_dbg.pools.validate import LAYOUTS_OF
from hicache_dbg.repro.sets import POOL_SETS

Combination = tuple[str, str, str]

OUTCOMES = ("moved", "verified", "witnessed", "mismatched", "skipped")


def combinations() -> list[Combination]:
    """Return pool set, layout and io backend of each run."""
    return [
        (name, layout.value, backend.value)
        for name, pool_set in POOL_SETS.items()
        for layout in pool_set.layouts
        for backend, layouts in LAYOUTS_OF.items()
        if layout in layouts
    ]


@dataclass(frozen=True)
class Row:
    """The result of one run; ``error`` is the last line on standard error if it printed no JSON."""

    combination: Combination
    code: int
    data: dict[str, Any]
    error: str

    @property
    def clean(self) -> bool:
        """Whether pages came back from the host and nothing was wrong."""
        return self.code == 0 and self.data["tiles"]["verified"] > 0

    def __str__(self) -> str:
        name, layout, backend = self.combination
        head = f"{name:12} {layout:18} {backend:7} exit={self.code}"
        if not self.data:
            return f"{head} {self.error}"
        sessions, tiles = self.data["sessions"], self.data["tiles"]
        outcomes = " ".join(f"{outcome}={tiles[outcome]}" for outcome in OUTCOMES)
        wall = f"wall={self.data['wall_seconds']:.1f}s (truth {self.data['truth_seconds']:.1f}s)"
        error = self.data["engine_error"]
        return (
            f"{head} corrupted={sessions['corrupted']}/{sessions['total']} {outcomes} {wall}"
            f"{' engine error: ' + error if error else ''}"
        )


def run(combination: Combination, options: Sequence[str]) -> Row:
    """Execute one run in its own process."""
    name, layout, backend = combination
    command = [sys.executable, "-m", "hicache_dbg", "repro", "--json", *options]
    command += ["--pools", name, "--layout", layout, "--io-backend", backend]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        data = json.loads(done.stdout)
    except json.JSONDecodeError:
        data = {}
    last = done.stderr.strip().splitlines()[-1:] or ["no output"]
    return Row(combination, done.returncode, data, last[0])


def main() -> None:
    """Run every combination and print the results in order."""
    parser = argparse.ArgumentParser(description="Run repro over every combination on a GPU.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=4)
    options, more = parser.parse_known_args()
    common = ["--device", options.device, "--sessions", str(options.sessions), *more]
    with ThreadPoolExecutor(options.jobs) as workers:
        clean = []
        for row in workers.map(lambda chosen: run(chosen, common), combinations()):
            print(row, flush=True)
            clean.append(row.clean)
    print(f"{sum(clean)} of {len(clean)} clean")
    sys.exit(0 if all(clean) else 1)


if __name__ == "__main__":
    main()
