"""Compare a storage tier with plain reads and writes of the same bytes, and measure its digests.

    python -m benchmarks.storage [--pairs 9] [--folder DIR] [--no-mooncake] [--beside] [--json]

Each row compares pairs of passes over the same host pages, in alternating order, and shows the median
of the pairs' ratios. ``plain`` is one file written and read sequentially, one page per call; for
Mooncake it is the client's own batch calls on one registered buffer, with pages in the memory of
another process. A bare loop does only what no tier can avoid: one file per page, or the same client,
and a digest of each page. On disk means that a store ends when its bytes are on the disk, and that a
fetch finds none of them in the page cache. In the page cache a fetch starts once the write-back is
finished, which is not timed; ``--beside`` does not wait for it.
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from benchmarks.storage_bare import (
    After,
    Pages,
    Pass,
    bare_files,
    lender,
    own_client,
    passes,
    plain_files,
    timed,
    to_disk,
    write_back,
)

from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.kinds import mla
from hicache_dbg.pools.storage.engine import StorageEngine, StorageOp
from hicache_dbg.pools.storage.files import FileStore
from hicache_dbg.pools.storage.keys import Identity
from hicache_dbg.pools.storage.mooncake import MooncakeStore
from hicache_dbg.pools.storage.store import PageStore
from hicache_dbg.repro.mooncake_master import master
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

PAGES = 24
PAGE_TOKENS = 64
LAYERS = 61  # of 64 x 1,152 B: a page of DeepSeek-V3, 4,497,408 B
MOST_COST = 1.05
Way = Callable[[], Pass]
"""Runs one pass over the pages."""


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison: the median of time(base) / time(ours), or of time(with) / time(without)."""

    what: str
    goal: str
    store: float
    fetch: float
    ours_gb_s: tuple[float, float]


def group_of() -> PoolGroup:
    """Return host pages filled with random bytes."""
    group = PoolGroup.build(
        [mla(LAYERS, PAGE_TOKENS, torch.bfloat16)],
        device_pages=1,
        host_pages=PAGES,
        layout=Layout.PAGE_FIRST,
    )
    memory = group.mirrors[0].host.buffers["latent"].flat(0).numpy()
    memory[:] = np.random.default_rng(0).integers(0, 256, memory.size, np.uint8)
    return group


def tier(
    group: PoolGroup,
    backend: PageStore,
    *,
    digests: bool = True,
    places: Callable[[str], Path] | None = None,
    after: After | None = None,
) -> Way:
    """Return a pass through the storage engine that uses fresh names each time.

    ``places`` maps a name to its file, for stores that have files; ``after`` says what follows a store.
    """
    after = after or After()
    engine = StorageEngine(group, backend, Identity("benchmark"), digests=digests)

    def run() -> Pass:
        tokens = np.full(PAGES * PAGE_TOKENS, next(passes), "<i4").tobytes()
        keys, pages, lives = engine.keys(tokens), np.arange(PAGES), np.ones(PAGES, np.uint32)
        put, got = (engine.op(kind, keys, pages, lives) for kind in ("store", "fetch"))
        files = [places(key.name) for key in keys] if places is not None else []

        def store() -> None:
            engine.store(put)
            after.timed(files)

        stored = timed(store)
        after.untimed(files)
        seconds = stored, timed(lambda: engine.fetch(got))
        for op in (put, got):
            _all_good(op)
        for key in keys:
            backend.discard(key.name)
        return seconds

    return run


@contextmanager
def traced() -> Iterator[None]:
    """Run the tracer, with digests at the default level."""
    settings = Settings(gate=Gate.ON, checksum=Checksum.LOADS)
    with Runtime.start(settings, sinks=[MemorySink()]):
        yield


def under_tracer(run: Way) -> Way:
    """Return the same pass under the tracer; attaching and detaching is not timed."""

    def pass_() -> Pass:
        with traced():
            return run()

    return pass_


def compare(what: str, goal: str, ours: Way, base: Way, *, pairs: int, cost: bool) -> Row:
    """Return the median ratios of ``pairs`` pairs: of times if ``cost``, otherwise of speeds."""
    for run in (ours, base):
        run()  # warm-up: maps pages and creates files
    ratios: list[Pass] = []
    mine: list[Pass] = []
    for number in range(pairs):
        order = (ours, base) if number % 2 else (base, ours)
        taken = {run: run() for run in order}
        one, other = taken[ours], taken[base]
        mine.append(one)
        ratios.append(
            (one[0] / other[0], one[1] / other[1])
            if cost
            else (other[0] / one[0], other[1] / one[1])
        )
    gb = PAGES * LAYERS * PAGE_TOKENS * 1152 / 1e9
    speeds = (
        gb / statistics.median(item[0] for item in mine),
        gb / statistics.median(item[1] for item in mine),
    )
    store, fetch = (statistics.median(item[at] for item in ratios) for at in (0, 1))
    return Row(what, goal, store, fetch, speeds)


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways to move the same pages, and the goal for the tier's speed relative to ``plain``."""

    goal: float
    ours: Way
    without: Way
    plain: Way
    bare: Way
    bare_without: Way


def rows_of(name: str, ways: Ways, pairs: int) -> list[Row]:
    """Return all comparisons of one store."""
    cost, ours = f"<= {MOST_COST}", ways.ours
    speed, time_ = (
        partial(compare, pairs=pairs, cost=False),
        partial(compare, pairs=pairs, cost=True),
    )
    return [
        speed(f"{name}: tier / plain, speed", f">= {ways.goal}", ours, ways.plain),
        speed(f"{name}: tier without digests / plain, speed", "", ways.without, ways.plain),
        time_(f"{name}: with / without digests, time", cost, ours, ways.without),
        time_(f"{name}: bare loops with / without digests, time", "", ways.bare, ways.bare_without),
        speed(f"{name}: tier / bare loops, both with digests, speed", "", ours, ways.bare),
        time_(f"{name}: traced / not traced, time", cost, under_tracer(ours), ours),
    ]


def files_rows(group: PoolGroup, folder: Path, name: str, after: After, pairs: int) -> list[Row]:
    """Measure the file tier, in the page cache or on the disk."""
    store, pages = FileStore(folder / name), pages_of(group)
    ways = Ways(
        0.8,
        ours=tier(group, store, places=store.path, after=after),
        without=tier(group, store, digests=False, places=store.path, after=after),
        plain=plain_files(pages, folder, after),
        bare=bare_files(pages, folder, after, digests=True),
        bare_without=bare_files(pages, folder, after, digests=False),
    )
    return rows_of(name, ways, pairs)


def mooncake_rows(group: PoolGroup, pairs: int) -> list[Row]:
    """Measure the Mooncake tier, with pages in the memory of another process."""
    pages = pages_of(group)
    with master() as running, lender(running, 6 * PAGES * len(pages[0])):
        store = MooncakeStore(running.address, running.metadata, segment_bytes=0)
        own = own_client(pages, store)
        ways = Ways(
            0.9,
            ours=tier(group, store),
            without=tier(group, store, digests=False),
            plain=own,
            bare=own_client(pages, store, digests=True),
            bare_without=own,
        )
        rows = rows_of("mooncake", ways, pairs)
        store.close()
    return rows


def main() -> None:
    """Measure and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument(
        "--folder", type=Path, help="where files go (default: the temporary folder)"
    )
    parser.add_argument("--no-mooncake", action="store_true")
    parser.add_argument("--beside", action="store_true", help="fetch while the disk is written to")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    group, rows = group_of(), list[Row]()
    with TemporaryDirectory(dir=asked.folder) as folder:
        cached = After() if asked.beside else After(untimed=write_back)
        for name, after in (
            ("files in page cache", cached),
            ("files on disk", After(timed=to_disk)),
        ):
            rows += files_rows(group, Path(folder), name, after, asked.pairs)
    if not asked.no_mooncake:
        rows += mooncake_rows(group, asked.pairs)
    if asked.json:
        print(
            json.dumps(
                [{field: getattr(row, field) for field in Row.__dataclass_fields__} for row in rows]
            )
        )
        return
    print(
        f"{PAGES} pages of {LAYERS * PAGE_TOKENS * 1152:,} B, {asked.pairs} pairs, {os.cpu_count()} CPUs"
    )
    print(f"{'':62} {'goal':>8} {'store':>7} {'fetch':>7}   GB/s store, fetch")
    for row in rows:
        speeds = ", ".join(f"{value:.2f}" for value in row.ours_gb_s)
        print(f"{row.what:62} {row.goal:>8} {row.store:7.3f} {row.fetch:7.3f}   {speeds}")


def pages_of(group: PoolGroup) -> Pages:
    """Return views of the bytes of the host pages."""
    memory = group.mirrors[0].host.buffers["latent"].flat(0).numpy()
    size = memory.size // PAGES
    return [memory[at * size : (at + 1) * size].data for at in range(PAGES)]


def _all_good(op: StorageOp) -> None:
    bad = next((end for end in op.results if not end.good), None)
    if bad is not None:
        raise SystemExit(f"{op.kind}: {bad}")


if __name__ == "__main__":
    main()
