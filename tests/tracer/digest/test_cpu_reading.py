"""How the CPU digester reads: in place, in the order of the addresses, a little at a time."""

import ctypes
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import xxhash

from hicache_dbg.tracer.digest import cpu
from hicache_dbg.tracer.digest.cpu import CpuDigester
from hicache_dbg.tracer.digest.unlocked import WORTH_UNLOCKING
from hicache_dbg.tracer.view import Run, View

PAGES = 9


def pool(row: int, *, gap: int = 0, layers: int = 2) -> tuple[np.ndarray, View]:
    """Return memory [layers, pages, 2, row + gap] and the view of its two slots a page."""
    memory = np.random.default_rng(7).integers(0, 256, (layers, PAGES, 2, row + gap), np.uint8)
    page = 2 * (row + gap)
    bases = tuple(layer.ctypes.data for layer in memory)
    return memory, View(
        *("pool", "kv", "host", "layer_first", "uint8", 1, bases, page, page, PAGES, 2),
        runs=(Run(0, row + gap, row),),
        owner=memory,
    )


def expected(memory: np.ndarray, row: int, pages: np.ndarray) -> list[list[int]]:
    """Return the package's digests of the payload."""
    return [
        [xxhash.xxh3_64_intdigest(layer[page, :, :row].tobytes()) for page in pages]
        for layer in memory
    ]


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the addresses that are hashed from now on, in their order."""
    seen: list[int] = []
    plain = cpu._xxh3

    def hash_of(data: object) -> bytes:
        seen.append(np.frombuffer(data, np.uint8).ctypes.data)  # type: ignore[call-overload]
        return plain(data)

    monkeypatch.setattr(cpu, "_xxh3", hash_of)
    return seen


@pytest.mark.parametrize(("count", "ordered"), [(1023, False), (1024, True)])
def test_many_tiles_are_read_in_the_order_of_their_addresses(
    hashed: list[int], count: int, ordered: bool
) -> None:
    """From 1,024 tiles on, each where it lies; fewer as they were asked for."""
    memory, view = pool(300, layers=1)
    pages = np.random.default_rng(1).integers(0, PAGES, count)
    got = CpuDigester().digest(view, (0,), pages)
    wanted = [memory[0, page].ctypes.data for page in pages]
    assert hashed == (sorted(wanted) if ordered else wanted)
    assert got.tolist() == expected(memory, 300, pages)


def test_tiles_of_all_layers_count_towards_many(hashed: list[int]) -> None:
    """Two layers of 512 pages are 1,024 tiles."""
    memory, view = pool(300)
    pages = np.random.default_rng(1).integers(0, PAGES, 512)
    CpuDigester().digest(view, (0, 1), pages)
    assert hashed == sorted(memory[layer, page].ctypes.data for layer in (0, 1) for page in pages)


@pytest.mark.parametrize(
    ("row", "layers", "batch"), [(64, 1, 8192), (64, 2, 4096), (1 << 18, 1, 2), (1 << 20, 1, 1)]
)
def test_tiles_in_pieces_are_gathered_a_megabyte_at_a_time(
    monkeypatch: pytest.MonkeyPatch, row: int, layers: int, batch: int
) -> None:
    """All layers of a batch in turn; a tile that is longer by itself is a batch of its own."""
    memory, view = pool(row, gap=8, layers=layers)
    sizes: list[int] = []
    numbers = cpu._numbers

    def counted(digests: list[bytes]) -> np.ndarray:
        sizes.append(len(digests))
        return numbers(digests)

    monkeypatch.setattr(cpu, "_numbers", counted)
    pages = np.arange(2 * batch + 1) % PAGES
    got = CpuDigester().digest(view, range(layers), pages)
    assert sizes == [*[batch] * layers, *[batch] * layers, *[1] * layers]
    table = np.array(expected(memory, row, np.arange(PAGES)), np.uint64)
    assert (got == table[:, pages]).all()


@pytest.fixture
def unlocked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the addresses that are hashed without the GIL from now on."""
    seen: list[int] = []

    def at_address(address: int, size: int) -> int:
        seen.append(address)
        there = (ctypes.c_ubyte * size).from_address(address)
        return xxhash.xxh3_64_intdigest(memoryview(there))

    monkeypatch.setattr(cpu, "unlocked", lambda: at_address)
    return seen


def clock(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    """Let every look at the clock take ``step`` seconds."""
    ticks = itertools.count()
    monkeypatch.setattr(cpu, "time", SimpleNamespace(perf_counter=lambda: next(ticks) * step))


@pytest.mark.parametrize(
    ("beside", "row", "frees"),
    [
        (True, WORTH_UNLOCKING // 2, True),
        (True, WORTH_UNLOCKING // 2 - 1, False),
        (False, WORTH_UNLOCKING // 2, False),
        (None, WORTH_UNLOCKING // 2, False),
    ],
)
def test_long_tiles_are_hashed_without_the_gil_beside_the_engine(
    monkeypatch: pytest.MonkeyPatch,
    unlocked: list[int],
    beside: bool | None,
    row: int,
    frees: bool,
) -> None:
    """From 32 KB on, and not on a thread that the engine waits for, which none is by default."""
    clock(monkeypatch, 0)
    memory, view = pool(row)
    pages = np.array([2, 0])
    digester = CpuDigester() if beside is None else CpuDigester(beside=beside)
    assert digester.digest(view, (0, 1), pages).tolist() == expected(memory, row, pages)
    there = [memory[layer, page].ctypes.data for layer in (0, 1) for page in (2, 0)]
    assert unlocked == (there if frees else [])


@pytest.mark.parametrize(("gigabytes_a_second", "layers"), [(0.9, 1), (1.1, 3)])
def test_a_digester_that_waits_for_the_gil_at_every_tile_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
    unlocked: list[int],
    gigabytes_a_second: float,
    layers: int,
) -> None:
    """A layer slower than a gigabyte a second is the last one that is hashed so."""
    row, pages = WORTH_UNLOCKING // 2, np.array([2, 0])
    memory, view = pool(row, layers=3)
    clock(monkeypatch, len(pages) * WORTH_UNLOCKING / (gigabytes_a_second * 1e9))
    got = CpuDigester(beside=True).digest(view, (0, 1, 2), pages)
    assert got.tolist() == expected(memory, row, pages)
    assert len(unlocked) == layers * len(pages)
