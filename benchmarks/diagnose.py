"""Measure time and memory of a diagnosis over 10^5 to 10^7 events: is the curve linear?

Each size is diagnosed in its own process, whose peak memory the kernel reports. The recording repeats
one block of synthetic events, each time ten seconds later. ``--draw`` also writes the page, the timeline
and the timeline around a finding, each in a process of its own, and measures the size of the files.

    python benchmarks/diagnose.py --most 10000000
    python benchmarks/diagnose.py --most 1000000 --draw
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from hicache_dbg.exporters.recording_format import FORMAT, Header
from hicache_dbg.tracer.events import (
    SCHEMA_VERSION,
    Copied,
    Event,
    FaultClass,
    Finding,
    Health,
    Op,
    Tier,
)

BLOCK = 99_999  # copies in a block, which ends with a heartbeat
STEP_NS = 100_000  # between copies
BLOCK_NS = STEP_NS * (BLOCK + 1)
BEGAN = 10**8  # blocks since the epoch
GOAL_S, GOAL_BYTES = 60.0, 2 << 30


def block() -> list[Event]:
    """Return backups and loads of three pools with eight pages each, and a heartbeat."""
    copies: list[Event] = [
        Copied(
            time_ns=BEGAN * BLOCK_NS + number * STEP_NS,
            pool=("mla", "dsa_index_k", "deepseek_v4_c4")[number % 3],
            op=Op.LOAD if number % 2 else Op.BACKUP,
            token_granular=False,
            layout="page_first",
            h=512,
            d=512,
            slot_page=64,
            unit="token",
            pages=8,
            item_bytes=8448,
            dtype="uint8",
            layers=61,
            cls="PagedHostPool",
            io_backend="kernel",
            src=Tier.HOST if number % 2 else Tier.DEVICE,
            dst=Tier.DEVICE if number % 2 else Tier.HOST,
            bytes=8 * 8448 * 61,
            duration_us=118.0 + number % 7,
            verified=488 if number % 2 else 0,
            witnessed=0 if number % 2 else 488,
            op_id=number,
            host_pages=tuple(range(number % 1000, number % 1000 + 8)),
            device_pages=tuple(range(number % 77, number % 77 + 8)),
            generations=(1,) * 8,
        )
        for number in range(BLOCK)
    ]
    return [*copies, Health(time_ns=BEGAN * BLOCK_NS, copies=BLOCK, events=BLOCK)]


def write(path: Path, events: int) -> int:
    """Write a recording of ``events`` events and a finding; return its size in bytes."""
    encoder = msgspec.json.Encoder()
    header = Header(format=FORMAT, schema=SCHEMA_VERSION, run_id="bench", time_ns=0)
    body = b"".join(encoder.encode(event) + b"\n" for event in block())
    began = b'"time_ns":%d'
    with path.open("wb") as file:
        file.write(encoder.encode(header) + b"\n")
        for number in range(events // (BLOCK + 1)):
            file.write(body.replace(began % BEGAN, began % (BEGAN + number)))
        middle = BEGAN * BLOCK_NS + events * STEP_NS // 2
        file.write(
            encoder.encode(
                Finding(time_ns=middle, cls=FaultClass.SLOT_REUSE, pool="mla", message="freed")
            )
            + b"\n"
        )
    return path.stat().st_size


def diagnosed(path: Path, *options: str) -> tuple[float, int]:
    """Run ``hicache-dbg diagnose --json``; return its seconds and peak bytes."""
    command = [sys.executable, "-m", "hicache_dbg", "diagnose", str(path), "--json", *options]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 1, f"diagnose ended with {process.returncode}"
    return seconds, usage.ru_maxrss * 1024


def drawn(path: Path) -> None:
    """Write and measure each kind of file."""
    for name, suffix, options in (
        ("--html", "html", ()),
        ("--perfetto", "pftrace", ()),
        ("--perfetto --around any", "pftrace", ("--around", "any")),
    ):
        written = path.with_suffix(f".{suffix}")
        seconds, peak = diagnosed(path, name.partition(" ")[0], str(written), *options)
        print(
            f"{name:>24}: {seconds:.2f} s, peak {peak / 2**20:.0f} MiB, "
            f"file {written.stat().st_size / 1e6:.2f} MB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a diagnosis over run length.")
    parser.add_argument("--most", type=int, default=10_000_000, help="the largest size")
    parser.add_argument("--draw", action="store_true", help="also write the page and the timeline")
    given = parser.parse_args()
    sizes = [size for size in (100_000, 1_000_000, 3_000_000, 10_000_000) if size <= given.most]
    print(f"{'events':>10} {'GB':>6} {'seconds':>8} {'us/event':>9} {'peak MiB':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            path = Path(folder) / "run.jsonl"
            volume = write(path, size)
            seconds, peak = diagnosed(path)
            print(
                f"{size:>10} {volume / 1e9:>6.2f} {seconds:>8.2f} {seconds / size * 1e6:>9.2f} "
                f"{peak / 2**20:>9.0f}"
            )
            if given.draw:
                drawn(path)
    print(f"goal at 10^7: under {GOAL_S:.0f} s and {GOAL_BYTES >> 20} MiB")


if __name__ == "__main__":
    main()
