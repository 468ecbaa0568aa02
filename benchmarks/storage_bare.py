"""The baselines of a storage tier: plain files, bare loops with and without digests, Mooncake's client."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import xxhash

from hicache_dbg.pools.storage.file_io import CACHED_STEP_BYTES
from hicache_dbg.pools.storage.files import READERS
from hicache_dbg.pools.storage.header import HEADER_BYTES
from hicache_dbg.pools.storage.idle import idle_cores
from hicache_dbg.pools.storage.mooncake import BATCH, MooncakeStore
from hicache_dbg.pools.storage.reserve import reserve
from hicache_dbg.pools.storage.side_by_side import side_by_side
from hicache_dbg.repro.mooncake_master import Master

Pages = list[memoryview]
"""The host pages, of equal size."""
Pass = tuple[float, float]
"""Seconds that a store and a fetch of all pages took."""

passes = count()
"""Numbers the passes, so that no name is used twice."""


def _nothing(_places: Iterable[Path]) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class After:
    """What follows the writes of a pass: ``timed`` counts as part of the store, ``untimed`` does not."""

    timed: Callable[[Iterable[Path]], None] = _nothing
    untimed: Callable[[Iterable[Path]], None] = _nothing


def to_disk(places: Iterable[Path]) -> None:
    """Wait until files are on the disk, and drop them from the page cache."""
    descriptors = [os.open(place, os.O_RDONLY) for place in places]
    for descriptor in descriptors:  # start the write-back of all of them
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    for descriptor in descriptors:
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def write_back(places: Iterable[Path]) -> None:
    """Wait until files are on the disk; they stay in the page cache."""
    for place in places:
        descriptor = os.open(place, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.close(descriptor)


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that ``call`` takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def plain_files(pages: Pages, folder: Path, after: After) -> Callable[[], Pass]:
    """Return a pass that writes and reads one file sequentially, with as many bytes as the tier's."""
    header = bytes(HEADER_BYTES)

    def run() -> Pass:
        place = folder / f"plain-{next(passes)}"

        def write() -> None:
            with place.open("wb", buffering=0) as file:
                for page in pages:
                    file.write(header)
                    file.write(page)
            after.timed([place])

        def read() -> None:
            room = bytearray(HEADER_BYTES)
            with place.open("rb", buffering=0) as file:
                for page in pages:
                    file.readinto(room)
                    file.readinto(page)

        written = timed(write)
        after.untimed([place])
        seconds = written, timed(read)
        place.unlink()
        return seconds

    return run


def bare_files(pages: Pages, folder: Path, after: After, *, digests: bool) -> Callable[[], Pass]:
    """Return a pass with one file per page and nothing else: the floor for a tier in Python.

    A second thread digests a page while it is written. As many threads as the tier has read files,
    and digest what they have just read.
    """
    beside = ThreadPoolExecutor(1)

    def write(place: Path, page: memoryview) -> None:
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        taken: Future[int] | None = None
        if digests:
            taken = beside.submit(xxhash.xxh3_64_intdigest, page)
        reserve(descriptor, HEADER_BYTES + len(page))
        os.pwritev(descriptor, [page], HEADER_BYTES)
        digest = taken.result() if taken is not None else 0
        os.pwritev(descriptor, [digest.to_bytes(HEADER_BYTES, "little")], 0)
        os.close(descriptor)

    def read(one: tuple[Path, memoryview]) -> int:
        place, page = one
        descriptor, hasher = os.open(place, os.O_RDONLY), xxhash.xxh3_64()
        os.preadv(descriptor, [bytearray(HEADER_BYTES)], 0)
        for at in range(0, len(page), CACHED_STEP_BYTES if digests else len(page)):
            part = page[at : at + CACHED_STEP_BYTES] if digests else page
            os.preadv(descriptor, [part], HEADER_BYTES + at)
            if digests:
                hasher.update(part)
        os.close(descriptor)
        return hasher.intdigest()

    def run() -> Pass:
        number = next(passes)
        places = [folder / f"bare-{number}-{at}" for at in range(len(pages))]
        files = list(zip(places, pages, strict=True))

        def store() -> None:
            for place, page in files:
                write(place, page)
            after.timed(places)

        stored = timed(store)
        after.untimed(places)
        readers = min(READERS + digests, 1 + idle_cores())
        seconds = stored, timed(lambda: side_by_side(read, files, readers))
        for place in places:
            place.unlink()
        return seconds

    return run


def own_client(pages: Pages, store: MooncakeStore, *, digests: bool = False) -> Callable[[], Pass]:
    """Return a pass of Mooncake's own batch calls on one registered buffer, with the tier's sizes.

    With ``digests``, two threads digest the pages between the calls.
    """
    client = store._client  # noqa: SLF001 - the very client that the tier uses
    size = HEADER_BYTES + len(pages[0])
    values = np.zeros((len(pages), size), np.uint8)
    values[:] = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    client.register_buffer(values.ctypes.data, values.nbytes)
    addresses = [values.ctypes.data + size * at for at in range(len(pages))]

    def digest(part: slice) -> None:
        if digests:
            side_by_side(xxhash.xxh3_64_intdigest, [value.data for value in values[part]], 2)

    def run() -> Pass:
        number = next(passes)
        names = [f"plain-{number}-{at}" for at in range(len(pages))]

        def batched(
            call: Callable[[list[str], list[int], list[int]], list[int]], put: bool
        ) -> None:
            for start in range(0, len(pages), BATCH):
                part = slice(start, start + BATCH)
                if put:
                    digest(part)
                codes = call(names[part], addresses[part], [size] * len(names[part]))
                if min(codes) < 0:
                    raise SystemExit(f"Mooncake's own client failed: {codes}")
                if not put:
                    digest(part)

        seconds = (
            timed(lambda: batched(client.batch_put_from, put=True)),
            timed(lambda: batched(client.batch_get_into, put=False)),
        )
        for name in names:
            store.discard(name)
        return seconds

    return run


@contextmanager
def lender(running: Master, segment_bytes: int) -> Iterator[None]:
    """Run another process that contributes the memory, so that pages cross the transport."""
    context = get_context("spawn")
    ready, done = context.Event(), context.Event()
    arguments = running.address, running.metadata, segment_bytes, ready, done
    process = context.Process(target=_lend, args=arguments)
    process.start()
    try:
        if not ready.wait(30):
            raise SystemExit("no process lends memory to Mooncake Store")
        yield
    finally:
        done.set()
        process.join(10)


def _lend(address: str, metadata: str, segment_bytes: int, ready: Event, done: Event) -> None:
    store = MooncakeStore(address, metadata, segment_bytes=segment_bytes)
    ready.set()
    done.wait()
    store.close()
