# mypy: disable-error-code="import-not-found"
"""Released SGLang with its real CUDA kernels, and us attached: round trips, faults, ranks, cost.

    PYTHONPATH=... python benchmarks/sglang_gpu/run.py [--parts faults,round_trips,ranks,cost] [--json]

README.md says what must be on the path. The exit code is 1 if a row misses its goal.
"""

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
warnings.filterwarnings("ignore")

import prelude  # noqa: E402
import setups  # noqa: E402
import torch  # noqa: E402
from tracing import Row  # noqa: E402


def main() -> int:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="faults,round_trips,ranks,cost")
    parser.add_argument(
        "--only", default="", help="cases whose name has this, or one of these, by commas"
    )
    parser.add_argument("--json", type=Path, help="also write the rows here")
    options = parser.parse_args()
    rows: list[Row] = []
    print(f"SGLang {setups.VERSION}, torch {torch.__version__}, {torch.cuda.get_device_name()}\n")
    print("| what | case | result | goal | |\n|---|---|---|---|---|", flush=True)
    for part in options.parts.split(","):
        began = time.perf_counter()
        for row in _part(part, options.only):
            rows.append(row)
            print(_line(row), flush=True)
        print(f"{part}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    lost = [row for row in rows if not row.kept]
    print(
        f"\n{len(rows)} rows, {len(lost)} not as they should be; stood in for: "
        f"{', '.join(sorted({name.partition('.')[0] for name in prelude.stood_in})) or '-'}"
    )
    if options.json:
        told = {
            "sglang": setups.VERSION,
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(),
            "rows": [asdict(row) for row in rows],
        }
        options.json.write_text(json.dumps(told, indent=1))
    return 1 if lost else 0


def _part(name: str, only: str) -> Iterator[Row]:
    from cost import cost, host
    from faults import faults
    from ranks import ranks
    from round_trips import round_trips

    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "round_trips": lambda: round_trips(only),
        "faults": lambda: faults(only),
        "ranks": lambda: ranks(only),
        "cost": cost,
        "host": host,
    }
    return parts[name]()


def _line(row: Row) -> str:
    state = "kept" if row.kept else "MISSED"
    return f"| {row.part} | {row.case} | {row.result} | {row.goal} | {state if row.goal else ''} |"


if __name__ == "__main__":
    sys.exit(main())
