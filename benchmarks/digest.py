"""What tile digests cost, as ratios measured side by side in one run.

    python benchmarks/digest.py --device cuda
    python benchmarks/digest.py --device cpu --json

On the CPU: the digester against the bare xxhash package. On CUDA: throughput against torch's own
read, copies with and without digests beside them, the host's time, and our own engine traced.
``hicache-dbg bench`` prints the same.
"""

import argparse
import json
import sys
from dataclasses import asdict

import torch
import xxhash

from hicache_dbg.tracer.bench.digests import NoDeviceError, digest_rows
from hicache_dbg.tracer.bench.table import markdown


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure what tile digests cost.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true", help="one JSON array instead of a table")
    options = parser.parse_args()
    try:
        rows = list(digest_rows(options.device))
    except NoDeviceError as error:
        print(error, file=sys.stderr)
        return 3
    if options.json:
        print(json.dumps([{**asdict(row), "kept": row.kept} for row in rows]))
        return 0
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    print(f"{name}, torch {torch.__version__}, xxhash {xxhash.VERSION}\n")
    print(markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
