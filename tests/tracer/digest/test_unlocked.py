"""Digests of memory at an address are those of the package, and a tile's whichever way it is read."""

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.tracer.digest import cpu
from hicache_dbg.tracer.digest.cpu import CpuDigester
from hicache_dbg.tracer.digest.unlocked import WORTH_UNLOCKING, unlocked
from hicache_dbg.tracer.view import Run, View

MEMORY = np.random.default_rng(0).integers(0, 256, 1 << 18, np.uint8)
SLOTS, PAGES = 64, 3


@given(first=st.integers(0, 4096), size=st.integers(1, 200_000))
def test_memory_at_an_address_has_the_package_s_digest(first: int, size: int) -> None:
    """Of any length and alignment: it is the same library."""
    at_address = unlocked()
    if at_address is None:
        pytest.skip("this build of xxhash does not show its library")
    wanted = xxhash.xxh3_64_intdigest(MEMORY[first : first + size].tobytes())
    assert at_address(MEMORY.ctypes.data + first, size) == wanted


@pytest.mark.parametrize("row", [WORTH_UNLOCKING // SLOTS - 8, WORTH_UNLOCKING // SLOTS + 8])
def test_a_tile_has_one_digest_whichever_way_it_is_read(
    monkeypatch: pytest.MonkeyPatch, row: int
) -> None:
    """Around the size from which the lock is released, and where the library is not to be had."""
    page = SLOTS * row
    view = View(
        pool="p",
        component="c",
        tier="device",
        layout="l",
        dtype="uint8",
        itemsize=1,
        bases=(MEMORY.ctypes.data, MEMORY.ctypes.data + 7),
        page_stride=page,
        page_span=page,
        pages=PAGES,
        slots_per_page=SLOTS,
        runs=(Run(0, row, row),),
        owner=MEMORY,
    )
    pages = np.array([2, 0])
    wanted = [
        [
            xxhash.xxh3_64_intdigest(MEMORY[at + page * one : at + page * (one + 1)].tobytes())
            for one in pages
        ]
        for at in (0, 7)
    ]
    assert CpuDigester(beside=True).digest(view, (0, 1), pages).tolist() == wanted
    monkeypatch.setattr(cpu, "unlocked", lambda: None)
    assert CpuDigester(beside=True).digest(view, (0, 1), pages).tolist() == wanted
