"""Measure what tracing our own engine costs on the CPU, as medians of paired ratios.

    python benchmarks/overhead.py [--pairs 7] [--sessions 12]

- A whole repro with digests over one without (the goal is at most 1.10), in wall-clock and in CPU time.
  Read the latter if the machine has other work.
- A call with the gate off over the bare function (it is the same object), and a traced call over it.
- How many events per second pass the bus into a sink.

``hicache-dbg bench`` prints the same.
"""

import argparse

from hicache_dbg.tracer.bench.overhead import overhead_rows
from hicache_dbg.tracer.bench.table import markdown


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure what tracing the engine costs.")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--sessions", type=int, default=12)
    options = parser.parse_args()
    print(markdown(overhead_rows(options.pairs, options.sessions)))


if __name__ == "__main__":
    main()
