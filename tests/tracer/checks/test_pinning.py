"""Page-locked memory: the driver's answer, the pinned bytes, and the bytes set aside."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.host import LatentHostPool
from hicache_dbg.pools.kinds import mla
from hicache_dbg.pools.pinning import NO_CUDA, PinState
from hicache_dbg.tracer.attach.hicache_views import pinning_of
from hicache_dbg.tracer.checks.pinning import (
    Pinning,
    PoolBudget,
    check_budget,
    check_pinning,
    metadata_bytes,
)
from hicache_dbg.tracer.events import FaultClass, Finding

GIB = 1 << 30
GOOD = Pinning(requested=True, pinned=True, return_code=0, bytes=8 * GIB, pinned_bytes=8 * GIB)


def found(**change: object) -> list[Finding]:
    """Return the findings for a pool that differs from a correct one in this."""
    return check_pinning("pool", replace(GOOD, **change), time_ns=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"return_code": 1}, "answered 1"),
        ({"pinned": False, "return_code": 2, "pinned_bytes": 0}, "refused 8589934592 B with 2"),
        ({"declared": 4 * GIB}, "4294967296 B cannot be reached"),
        ({"declared": 16 * GIB}, "8589934592 B are not there"),
        ({"pinned_bytes": 8 * GIB - 1}, "the last 1 are not"),
        (
            {"largest_chunk": 1 << 60},
            "one registration of 1152921504606846976 B needs 4503599627370496",
        ),
        (
            {"open": ((GIB, GIB),)},
            "1 chunk not known to the driver as pinned; the first: 1073741824 B from byte 1073741824",
        ),
    ],
)
def test_each_way_to_be_unpinned_is_told(change: dict[str, object], words: str) -> None:
    """The finding has class, pool and numbers."""
    (finding,) = found(**change)
    assert (finding.cls, finding.pool) == (FaultClass.PINNING, "pool")
    assert words in finding.message


@given(asked=st.booleans(), size=st.integers(1, 1 << 40))
def test_what_is_as_it_should_be_is_never_accused(asked: bool, size: int) -> None:
    """Completely pinned, not requested, or without a CUDA runtime: no finding."""
    whole = Pinning(asked, pinned=asked, return_code=0, bytes=size, pinned_bytes=asked * size)
    nobody = Pinning(asked, pinned=False, return_code=NO_CUDA, bytes=size, pinned_bytes=0)
    assert check_pinning("pool", whole, time_ns=1) == []
    assert check_pinning("pool", replace(whole, declared=size + size // 200), time_ns=1) == []
    assert check_pinning("pool", nobody, time_ns=1) == []
    unasked = replace(nobody, requested=False, return_code=2, largest_chunk=1 << 60)
    assert check_pinning("pool", unasked, time_ns=1) == []
    assert check_pinning("pool", None, time_ns=1) == []


def test_memory_that_was_pinned_once_is_told_where_it_is_not_any_more() -> None:
    """It is compared with its former state: a pool that was never pinned is no finding."""
    now = replace(GOOD, pinned=False, pinned_bytes=0)
    (finding,) = check_pinning("pool", now, time_ns=1, was=GOOD)
    assert "not any more" in finding.message
    assert check_pinning("pool", now, time_ns=1, was=now) == []
    (finding,) = check_pinning("pool", replace(now, return_code=2), time_ns=1, was=GOOD)
    assert "refused" in finding.message


def test_bytes_come_off_the_tensors() -> None:
    """A pool's claim is compared with the real bytes of its tensors."""
    pool = LatentHostPool(mla(2, 4), 6, Layout.PAGE_FIRST)
    short = PinState(requested=True, pinned=True, return_code=0, bytes=pool.nbytes - 64, chunks=1)
    pool.pinned = short
    pin = pinning_of(pool)
    pool.pinned = replace(short, pinned=False)  # nothing to unregister here
    assert pin.bytes == sum(buffer.nbytes for buffer in pool.buffers.values())
    (finding,) = check_pinning("pool", pin, time_ns=1)
    assert "the last 64 are not" in finding.message


def test_a_budget_is_compared_with_the_sum_of_real_bytes() -> None:
    """Up to one percent is tolerated; beyond it, the finding has every term and every pool."""
    budget = PoolBudget(1000, {"ratio": 2.0})
    assert check_budget(budget, {"kv": 900, "index_k": 90}, time_ns=1) == []
    (finding,) = check_budget(budget, {"kv": 900, "index_k": 300}, time_ns=1)
    assert finding.pool == "kv+index_k"
    assert all(word in finding.message for word in ("1200", "1000", "index_k 300", "ratio=2"))


@given(st.integers(1, 1 << 40))
def test_driver_metadata_is_sixteen_bytes_a_page(size: int) -> None:
    """Rounded up to whole pages of 4 KiB."""
    assert 16 * size <= 4096 * metadata_bytes(size) < 16 * (size + 4096)
