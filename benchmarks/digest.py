"""What tile digests cost, as ratios measured side by side in one run.

    python benchmarks/digest.py --device cuda
    python benchmarks/digest.py --device cpu --json

On the CPU: the digester against the bare xxhash package. On CUDA: throughput against torch's own
read, copies with and without digests beside them, and the host's time to enqueue them.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
import xxhash

from hicache_dbg.tracer.digest import CpuDigester
from hicache_dbg.tracer.digest.ring import ViolationRing
from hicache_dbg.tracer.digest.select import DeviceDigester, digester_for
from hicache_dbg.tracer.view import Run, View

GIB = 1 << 30
CONTIGUOUS = (1728, 4096, 8448, 16384, 37376, 73728)


@dataclass(frozen=True)
class Row:
    """One line of the table. ``goal`` is the bound that ``ratio`` is to keep, if it has one."""

    part: str
    case: str
    ratio: float | None
    detail: str
    goal: str = ""

    @property
    def kept(self) -> str:
        """Whether the goal is kept, in words."""
        if not self.goal or self.ratio is None:
            return ""
        sign, bound = self.goal.split()
        return "kept" if (self.ratio >= float(bound)) == (sign == ">=") else "missed"


def one_piece(memory: torch.Tensor, size: int, *, shift: int = 0, device: str = "") -> View:
    """Tiles of ``size`` bytes side by side in each layer of ``memory`` [layers, bytes]."""
    pages = (memory[0].nbytes - shift) // size
    return view_of(memory, (Run(0, size, size),), size, pages, shift=shift, device=device)


def view_of(
    memory: torch.Tensor,
    runs: tuple[Run, ...],
    stride: int,
    pages: int,
    *,
    slots: int = 1,
    shift: int = 0,
    device: str = "",
) -> View:
    """A view of each layer of ``memory`` [layers, bytes]."""
    return View(
        pool="bench",
        component="kv",
        tier="device",
        layout="layer_first",
        dtype="uint8",
        itemsize=1,
        bases=tuple(layer.data_ptr() + shift for layer in memory),
        page_stride=stride,
        page_span=stride,
        pages=pages,
        slots_per_page=slots,
        runs=runs,
        device=device or str(memory.device),
        owner=memory,
    )


def random_bytes(shape: Sequence[int], device: str) -> torch.Tensor:
    """Random uint8 of ``shape``; the last extent is a multiple of 8."""
    words = (*shape[:-1], shape[-1] // 8)
    return torch.randint(-(1 << 62), 1 << 62, words, device=device).view(torch.uint8)


# The CPU against the package.


def cpu_rows(repeats: int = 9) -> Iterator[Row]:
    """The same tiles of 256 MB in the same order through the package, each a buffer made ahead."""
    memory, digester = random_bytes((1, GIB // 4), "cpu"), CpuDigester()
    whole = memory[0].numpy().data
    for size in CONTIGUOUS:
        view = one_piece(memory, size)
        order = np.random.default_rng(1).permutation(view.pages)
        tiles = [whole[page * size : (page + 1) * size] for page in order.tolist()]
        ratios, times = [], []
        for _ in range(repeats):
            bare = seconds(partial(package_digests, tiles))
            ours = seconds(partial(digester.digest, view, [0], order))
            ratios.append(bare / ours)
            times.append(ours)
        speed = view.pages * size / statistics.median(times) / 1e9
        goal = ">= 0.9" if size >= 8192 else ""
        yield Row("cpu over xxhash", f"{size} B", median(ratios), f"{speed:.1f} GB/s", goal)
    rows = view_of(memory, (Run(0, 4096, 512),), 64 * 4096, GIB // 4 // (64 * 4096), slots=64)
    order = np.random.default_rng(1).permutation(rows.pages)
    took = statistics.median(
        seconds(lambda: digester.digest(rows, [0], order)) for _ in range(repeats)
    )
    speed = rows.pages * rows.tile_bytes() / took / 1e9
    yield Row("cpu rows", "64 rows of 512 B, 1 layer of 8", None, f"{speed:.1f} GB/s")


def package_digests(tiles: list[memoryview]) -> list[int]:
    return [xxhash.xxh3_64_intdigest(tile) for tile in tiles]


# Throughput on the device, against torch's read of the same bytes.


def throughput_rows(digester: DeviceDigester) -> Iterator[Row]:
    """Every tile of 4 GiB, by random page ids; then other shapes; then other counts."""
    memory = random_bytes((1, 4 * GIB), "cuda")
    for size in CONTIGUOUS:
        goal = ">= 0.97" if size >= 4096 else ">= 0.85"
        yield from against_read(digester, one_piece(memory, size), f"{size} B", goal=goal)
    shapes = {
        "512 B rows, 64 to a tile": ((Run(0, 1024, 512),), 65536, 64),
        "132 B rows, 64 to a tile": ((Run(0, 264, 132),), 64 * 264, 64),
        "576 B and 8 B runs, gaps between": ((Run(0, 640, 576), Run(40960, 16, 8)), 41984, 64),
    }
    for name, (runs, stride, slots) in shapes.items():
        view = view_of(memory, runs, stride, 4 * GIB // stride, slots=slots)
        yield from against_read(digester, view, name)
    for shift in (8, 4, 1):
        view = one_piece(memory, 8448, shift=shift)
        yield from against_read(digester, view, f"8448 B at an address of {shift} mod 16")
    del memory
    memory = random_bytes((61, GIB // 8), "cuda")
    for count in (16, 64, 256, 1024, 8000):
        view = one_piece(memory, 16384)
        yield from against_read(digester, view, f"16384 B, 61 layers x {count} pages", count=count)
    del memory
    memory = random_bytes((1, 500_000 * 8448), "cuda")
    for count in (16, 256, 4096, 65536, 500_000):
        view = one_piece(memory, 8448)
        yield from against_read(digester, view, f"8448 B, 1 layer x {count} pages", count=count)


def against_read(
    digester: DeviceDigester, view: View, case: str, *, goal: str = "", count: int = 0
) -> Iterator[Row]:
    """Digest ``count`` random pages (default: all) of each layer, beside torch's sum of as many bytes.

    Each repetition takes other pages and other memory, so that small counts are not read from the
    cache.
    """
    memory, layers = view.owner, view.layers
    assert isinstance(memory, torch.Tensor)
    count = min(count or view.pages, view.pages)
    order = torch.randperm(view.pages, device="cuda")
    out = torch.empty(layers, count, dtype=torch.int64, device="cuda")
    words = memory.view(-1).view(torch.int64)
    length = min(layers * count * view.tile_bytes() // 8, len(words))
    ratios, speeds, times = [], [], []
    for repeat in range(10):
        page = repeat * count % max(1, view.pages - count + 1)
        ids = order[page : page + count]
        at = repeat * length % max(1, len(words) - length + 1)
        ours = device_ms(partial(digester.digest, view, range(layers), ids, out=out))
        read = device_ms(words[at : at + length].sum)
        if repeat >= 3:  # the first warm up
            ratios.append(read / ours * layers * count * view.tile_bytes() / (8 * length))
            speeds.append(layers * count * view.tile_bytes() / ours / 1e6)
            times.append(ours)
    took = f"{statistics.median(speeds):.0f} GB/s in {1e3 * statistics.median(times):.0f} us"
    yield Row("device over torch read", case, median(ratios), took, goal)


# Copies with and without digests.


class Copies:
    """A device pool, pinned host pages, and operations whose slots are recycled while they run.

    Operation ``n`` uses the page set ``n % SETS``. When it is complete another stream overwrites
    the set's device pages, and the next operation on it waits for that. ``held`` records
    completion on the copy's stream after it has waited for the digests, ``aside`` on theirs.
    """

    LAYERS, PAGE, COUNT, SETS = 61, 16384, 256, 4

    def __init__(self, digester: DeviceDigester) -> None:
        from hicache_dbg.tracer.digest.side import SideStream

        layers, count, words = self.LAYERS, self.COUNT, self.PAGE // 8
        self.digester = digester
        self.pool = random_bytes((layers, self.SETS * count, self.PAGE), "cuda").view(torch.int64)
        self.view = one_piece(self.pool.view(torch.uint8).flatten(1), self.PAGE)
        self.host = [
            torch.empty(layers, count, words, dtype=torch.int64, pin_memory=True)
            for _ in range(self.SETS)
        ]
        self.ledger = [
            torch.empty(layers, count, dtype=torch.int64, pin_memory=True) for _ in range(self.SETS)
        ]
        self.digests = [torch.empty_like(kept, device="cuda") for kept in self.ledger]
        self.ids = list(torch.randperm(self.SETS * count, device="cuda").view(self.SETS, count))
        self.fresh = random_bytes((layers, count, self.PAGE), "cuda").view(torch.int64)
        self.staged = [torch.empty_like(self.fresh) for _ in range(2)]
        self.copy, self.writer = SideStream().stream, SideStream().stream
        self.side, self.ring = SideStream(), ViolationRing("cuda")
        self.done = [event() for _ in range(self.SETS)]
        self.written = [event() for _ in range(self.SETS)]
        digester.prepare(self.view)

    def backup(self, number: int, how: str) -> None:
        """Device to host. The source is digested beside the bus copy, before it may be written."""
        at = number % self.SETS
        self.copy.wait_event(self.written[at])
        staged = self.staged[number % 2]
        with torch.cuda.stream(self.copy):
            torch.index_select(self.pool, 1, self.ids[at], out=staged)
        if how != "off":
            self.side.follow(self.copy.cuda_stream)
            self._digest(at)
        with torch.cuda.stream(self.copy):
            self.host[at].copy_(staged, non_blocking=True)
        self._complete(at, how)
        if how != "off":
            self.side.copy(self.ledger[at], self.digests[at])

    def load(self, number: int, how: str, groups: Sequence[int] = (0, 61)) -> None:
        """Host to device, in groups of layers, each compared once its copy is done."""
        at = number % self.SETS
        self.copy.wait_event(self.written[at])
        if how != "off":
            self.side.copy(self.digests[at], self.ledger[at])
        for low, high in pairwise(groups):
            with torch.cuda.stream(self.copy):
                staged = self.staged[number % 2][low:high]
                staged.copy_(self.host[at][low:high], non_blocking=True)
                self.pool[low:high].index_copy_(1, self.ids[at], staged)
            if how != "off":
                self.side.follow(self.copy.cuda_stream)
                self._compare(at, low, high)
        self._complete(at, how)

    def _digest(self, at: int) -> None:
        self.digester.digest(
            *(self.view, range(self.LAYERS), self.ids[at]),
            out=self.digests[at],
            stream=self.side.handle,
        )

    def _compare(self, at: int, low: int, high: int) -> None:
        self.digester.compare(
            *(self.view, range(low, high), self.ids[at]),
            expected=self.digests[at][low:high],
            ring=self.ring,
            tag=at,
            stream=self.side.handle,
        )

    def _complete(self, at: int, how: str) -> None:
        """Record the operation as complete, and recycle its pages once it is."""
        if how == "held":
            self.side.hold(self.copy.cuda_stream)
        if how == "aside":
            self.side.follow(self.copy.cuda_stream)
            self.done[at].record(self.side.stream)
        else:
            self.done[at].record(self.copy)
        self.writer.wait_event(self.done[at])
        with torch.cuda.stream(self.writer):
            self.pool.index_copy_(1, self.ids[at], self.fresh)
        self.written[at].record(self.writer)

    def violations(self) -> int:
        """How many tiles were found to differ since this was last asked."""
        torch.cuda.synchronize()
        self.ring.fetch()
        torch.cuda.synchronize()
        taken = self.ring.take()
        return len(taken.violations) + taken.lost


def copy_rows(digester: DeviceDigester, pairs: int = 15) -> Iterator[Row]:
    """Streams of 24 operations and single ones; at the end one flipped bit, to show that it counts."""
    copies = Copies(digester)
    size = copies.LAYERS * copies.COUNT * copies.PAGE
    for number in range(copies.SETS):  # what the ledger and the host hold before a load
        copies.backup(number, "held")
    two_groups = partial(copies.load, groups=(0, 50, 61))
    for name, operation in (
        ("backup", copies.backup),
        ("load", copies.load),
        ("load in 2 groups", two_groups),
    ):
        for count, limit in ((24, "<= 1.003"), (1, "<= 1.015")):
            for how in ("held", "aside"):
                run = partial(run_operations, operation, count)
                for warm in ("off", how):
                    run(warm)
                ratios = [run(how) / run("off") for _ in range(pairs)]
                speed = size * count / run(how) / 1e9
                detail = f"{speed:.1f} GB/s, min {min(ratios):.4f} max {max(ratios):.4f}"
                case = f"{name}, {f'stream of {count}' if count > 1 else 'one op'}, {how}"
                yield Row("with over without", case, median(ratios), detail, limit)
    wrong = copies.violations()
    copies.host[1][7, 5, 3] ^= 1
    copies.load(1, "held")
    detail = f"{wrong} violations in the runs above, {copies.violations()} after one flipped bit"
    yield Row("with over without", "what was found", None, detail)


def run_operations(operation: Callable[[int, str], None], count: int, how: str) -> float:
    """Seconds from a quiet device until ``count`` operations are done."""

    def run() -> None:
        for number in range(count):
            operation(number, how)

    torch.cuda.synchronize()
    return seconds(run)


# The host's time to enqueue.


def host_rows(digester: DeviceDigester) -> Iterator[Row]:
    """What an operation of four pages and 61 layers costs the host more with digests than without."""
    from hicache_dbg.tracer.digest.side import SideStream

    view = one_piece(random_bytes((61, 64 * 16384), "cuda"), 16384)
    ids, side, ring = torch.arange(4, device="cuda"), SideStream(), ViolationRing("cuda")
    ledger = torch.empty(61, 4, dtype=torch.int64, pin_memory=True)
    digests = ledger.cuda()
    stream, value = torch.cuda.current_stream().cuda_stream, torch.zeros(1, device="cuda")
    digester.prepare(view)

    def backup() -> None:
        side.follow(stream)
        digester.digest(view, range(61), ids, out=digests, stream=side.handle)
        side.hold(stream)
        side.copy(ledger, digests)

    def load(*borders: int) -> None:
        side.copy(digests, ledger)
        for low, high in pairwise(borders):
            side.follow(stream)
            digester.compare(
                *(view, range(low, high), ids),
                expected=digests[low:high],
                ring=ring,
                tag=1,
                stream=side.handle,
            )
        side.hold(stream)

    cases: tuple[tuple[str, Callable[[], object]], ...] = (
        ("backup", backup),
        ("load", lambda: load(0, 61)),
        ("load in 2 groups", lambda: load(0, 50, 61)),
    )
    for name, enqueue in cases:
        ratios, ours = [], []
        for _ in range(15):
            ours.append(host_us(enqueue))
            ratios.append(ours[-1] / host_us(lambda: value.add_(1)))
        yield Row("host over tensor.add_", name, median(ratios), f"{median(ours)} us", "<= 3")


def host_us(enqueue: Callable[[], object], count: int = 100) -> float:
    """Microseconds of the host to enqueue once, with the queue never full."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        enqueue()
    return (time.perf_counter() - start) / count * 1e6


def device_ms(enqueue: Callable[[], object]) -> float:
    """Milliseconds of the device, between events around the call."""
    start, end = event(timing=True), event(timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(400_000)  # noqa: SLF001 (the host is to be ahead when the clock starts)
    start.record()
    enqueue()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def event(*, timing: bool = False) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=timing)


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock seconds until the work, on the device too, is done."""
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def median(values: list[float]) -> float:
    """The median, rounded to what it is worth."""
    return round(statistics.median(values), 4)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what tile digests cost.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true", help="one JSON array instead of a table")
    options = parser.parse_args()
    rows = list(cpu_rows())
    name = "cpu"
    if options.device == "cuda":
        if not torch.cuda.is_available():
            print("no CUDA device is visible to torch", file=sys.stderr)
            return 3
        name, digester = torch.cuda.get_device_name(), digester_for("cuda")
        for part in (throughput_rows, copy_rows, host_rows):
            rows += part(digester)
    if options.json:
        print(json.dumps([{**asdict(row), "kept": row.kept} for row in rows]))
        return 0
    print(f"{name}, torch {torch.__version__}, xxhash {xxhash.VERSION}\n")
    print("| what | case | ratio | goal | | measured |\n|---|---|---|---|---|---|")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.4f}"
        print(f"| {row.part} | {row.case} | {ratio} | {row.goal} | {row.kept} | {row.detail} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
