"""What a storage tier costs beside plain reads and writes of the same bytes, and what digests add.

    python benchmarks/storage.py [--pairs 9] [--folder DIR] [--no-mooncake] [--beside] [--json]

Pairs of passes over the same host pages, one after the other, in alternating order; the table has
the median of the pairs' ratios. ``plain`` is one file written and read in sequence, a page a call,
and for Mooncake its own client's batch calls on one registered buffer; pages go to the memory of
another process. On disk means that a store ends when its bytes are on the disk, and that a fetch
finds nothing of them in the page cache. In the page cache a fetch begins when the disk is done with
the store, of which nothing is timed; ``--beside`` does not wait for it.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.kinds import mla
from hicache_dbg.pools.storage.engine import StorageEngine, StorageOp
from hicache_dbg.pools.storage.files import FileStore
from hicache_dbg.pools.storage.header import HEADER_BYTES
from hicache_dbg.pools.storage.keys import Identity
from hicache_dbg.pools.storage.mooncake import BATCH, MooncakeStore
from hicache_dbg.pools.storage.store import PageStore
from hicache_dbg.repro.mooncake_master import Master, master
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

PAGES = 24
PAGE_TOKENS = 64
LAYERS = 61  # of 64 x 1,152 B: a page of DeepSeek-V3, 4,497,408 B
MOST_COST = 1.05
Pass = tuple[float, float]
"""Seconds of a store and of a fetch of all pages."""

_passes = count()


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison: median of time(base) / time(ours), or of time(with) / time(without)."""

    what: str
    goal: str
    store: float
    fetch: float
    ours_gb_s: tuple[float, float]


def _to_disk(places: Iterable[Path]) -> None:
    """Wait until files are on the disk, and let the page cache forget them."""
    descriptors = [os.open(place, os.O_RDONLY) for place in places]
    for descriptor in descriptors:  # the disk begins with all of them
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    for descriptor in descriptors:
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _write_back(places: Iterable[Path]) -> None:
    """Wait until files are on the disk too."""
    for place in places:
        descriptor = os.open(place, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.close(descriptor)


def _nothing(_places: Iterable[Path]) -> None:
    """Files stay where they are."""


@dataclass(frozen=True, slots=True)
class After:
    """What is done with a pass's files once they are written: in the time of the store, and behind it."""

    timed: Callable[[Iterable[Path]], None] = _nothing
    untimed: Callable[[Iterable[Path]], None] = _nothing


def group_of() -> PoolGroup:
    """Host pages full of random bytes."""
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
) -> Callable[[], Pass]:
    """One pass through the storage engine, under names never used before.

    ``places`` says where each page's file is, if they are files, and ``after`` what a store is
    followed by.
    """
    after = after or After()
    engine = StorageEngine(group, backend, Identity("benchmark"), digests=digests)

    def run() -> Pass:
        tokens = np.full(PAGES * PAGE_TOKENS, next(_passes), "<i4").tobytes()
        keys, pages, lives = engine.keys(tokens), np.arange(PAGES), np.ones(PAGES, np.uint32)
        put, got = (engine.op(kind, keys, pages, lives) for kind in ("store", "fetch"))
        files = [places(key.name) for key in keys] if places is not None else []

        def store() -> None:
            engine.store(put)
            after.timed(files)

        stored = _timed(store)
        after.untimed(files)
        seconds = stored, _timed(lambda: engine.fetch(got))
        for op in (put, got):
            _all_good(op)
        for key in keys:
            backend.discard(key.name)
        return seconds

    return run


def plain_files(group: PoolGroup, folder: Path, after: After) -> Callable[[], Pass]:
    """One file, written and read in sequence, as many bytes as the tier's files have."""
    header, pieces = bytes(HEADER_BYTES), _pages(group)

    def run() -> Pass:
        place = folder / f"plain-{next(_passes)}"

        def write() -> None:
            with place.open("wb", buffering=0) as file:
                for piece in pieces:
                    file.write(header)
                    file.write(piece)
            after.timed([place])

        def read() -> None:
            room = bytearray(HEADER_BYTES)
            with place.open("rb", buffering=0) as file:
                for piece in pieces:
                    file.readinto(room)
                    file.readinto(piece)

        written = _timed(write)
        after.untimed([place])
        seconds = written, _timed(read)
        place.unlink()
        return seconds

    return run


def own_client(group: PoolGroup, store: MooncakeStore) -> Callable[[], Pass]:
    """Mooncake's own batch calls, values of the same size, batches of the same length."""
    client = store._client  # noqa: SLF001 - the very client that the tier uses
    size = HEADER_BYTES + sum(map(len, _pages(group)[:1]))
    values = np.zeros((PAGES, size), np.uint8)
    values[:] = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    client.register_buffer(values.ctypes.data, values.nbytes)

    def run() -> Pass:
        addresses = [values.ctypes.data + size * at for at in range(PAGES)]
        number = next(_passes)
        names = [f"plain-{number}-{at}" for at in range(PAGES)]

        def batched(call: Callable[[list[str], list[int], list[int]], list[int]]) -> None:
            for start in range(0, PAGES, BATCH):
                part = slice(start, start + BATCH)
                codes = call(names[part], addresses[part], [size] * len(names[part]))
                if min(codes) < 0:
                    raise SystemExit(f"Mooncake's own client failed: {codes}")

        seconds = (
            _timed(lambda: batched(client.batch_put_from)),
            _timed(lambda: batched(client.batch_get_into)),
        )
        for name in names:
            store.discard(name)
        return seconds

    return run


@contextmanager
def lender(running: Master) -> Iterator[None]:
    """Another process that lends the memory that pages go to, so that they do cross the transport."""
    context = get_context("spawn")
    ready, done = context.Event(), context.Event()
    process = context.Process(target=_lend, args=(running.address, running.metadata, ready, done))
    process.start()
    try:
        if not ready.wait(30):
            raise SystemExit("no process lends memory to Mooncake Store")
        yield
    finally:
        done.set()
        process.join(10)


def _lend(address: str, metadata: str, ready: Event, done: Event) -> None:
    segment = 6 * PAGES * LAYERS * PAGE_TOKENS * 1152
    store = MooncakeStore(address, metadata, segment_bytes=segment)
    ready.set()
    done.wait()
    store.close()


@contextmanager
def traced() -> Iterator[None]:
    """The tracer, with digests at the default level."""
    settings = Settings(gate=Gate.ON, checksum=Checksum.LOADS)
    with Runtime.start(settings, sinks=[MemorySink()]):
        yield


def under_tracer(run: Callable[[], Pass]) -> Callable[[], Pass]:
    """The same pass with the tracer attached meanwhile; its start and end are not timed."""

    def pass_() -> Pass:
        with traced():
            return run()

    return pass_


def compare(
    what: str,
    goal: str,
    ours: Callable[[], Pass],
    base: Callable[[], Pass],
    pairs: int,
    *,
    cost: bool,
) -> Row:
    """Median ratios of ``pairs`` pairs; as a cost, time over the base's, else speed over the base's."""
    for run in (ours, base):
        run()  # pages are mapped and files made once before it counts
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


def rows_of(
    name: str,
    ours: Callable[[], Pass],
    bare: Callable[[], Pass],
    base: Callable[[], Pass],
    *,
    goal: float,
    pairs: int,
) -> list[Row]:
    """The comparisons of one store: with digests, without, and the plain way."""
    cost = f"<= {MOST_COST}"
    traced_ours = under_tracer(ours)
    return [
        compare(f"{name}: tier / plain, speed", f">= {goal}", ours, base, pairs, cost=False),
        compare(f"{name}: tier without digests / plain, speed", "", bare, base, pairs, cost=False),
        compare(f"{name}: with / without digests, time", cost, ours, bare, pairs, cost=True),
        compare(f"{name}: traced / not traced, time", cost, traced_ours, ours, pairs, cost=True),
    ]


def files_rows(group: PoolGroup, folder: Path, name: str, after: After, pairs: int) -> list[Row]:
    """The file tier, in the page cache or on the disk."""
    store = FileStore(folder / name)
    ours = tier(group, store, places=store.path, after=after)
    bare = tier(group, store, digests=False, places=store.path, after=after)
    base = plain_files(group, folder, after)
    return rows_of(name, ours, bare, base, goal=0.8, pairs=pairs)


def mooncake_rows(group: PoolGroup, pairs: int) -> list[Row]:
    """The Mooncake tier, pages in another process's memory."""
    with master() as running, lender(running):
        store = MooncakeStore(running.address, running.metadata, segment_bytes=0)
        ours, bare = tier(group, store), tier(group, store, digests=False)
        rows = rows_of("mooncake", ours, bare, own_client(group, store), goal=0.9, pairs=pairs)
        store.close()
    return rows


def main() -> None:
    """Measure, and print a table or JSON."""
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
        cached = After() if asked.beside else After(untimed=_write_back)
        for name, after in (
            ("files in page cache", cached),
            ("files on disk", After(timed=_to_disk)),
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
    print(f"{'':52} {'goal':>8} {'store':>7} {'fetch':>7}   GB/s store, fetch")
    for row in rows:
        speeds = ", ".join(f"{value:.2f}" for value in row.ours_gb_s)
        print(f"{row.what:52} {row.goal:>8} {row.store:7.3f} {row.fetch:7.3f}   {speeds}")


def _pages(group: PoolGroup) -> list[memoryview]:
    memory = group.mirrors[0].host.buffers["latent"].flat(0).numpy()
    size = memory.size // PAGES
    return [memory[at * size : (at + 1) * size].data for at in range(PAGES)]


def _timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _all_good(op: StorageOp) -> None:
    bad = next((end for end in op.results if not end.good), None)
    if bad is not None:
        raise SystemExit(f"{op.kind}: {bad}")


if __name__ == "__main__":
    main()
