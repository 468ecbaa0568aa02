"""Published fault reports about pinning and dead tiers, each with its correct diagnosis."""

import pytest

from hicache_dbg.pools.pinning import CHUNK_BYTES
from hicache_dbg.tracer.checks.pinning import (
    DRIVER_MOST,
    Pinning,
    check_pinning,
    metadata_bytes,
)
from hicache_dbg.tracer.checks.tiers import Paths, TierUse
from hicache_dbg.tracer.checks.violation import Access
from hicache_dbg.tracer.events import FaultClass

GIB = 1 << 30
BY = Access("copy", "worker")


def refused(size: int, code: int = 1) -> Pinning:
    """Return the findings for a pool whose registration was refused."""
    return Pinning(requested=True, pinned=False, return_code=code, bytes=size, pinned_bytes=0)


def test_a_large_request_that_is_refused() -> None:
    """Entry 93: 8 GiB asked for, return code 1: both numbers are in the finding."""
    (found,) = check_pinning("kv", refused(8 * GIB), time_ns=1)
    assert found.cls is FaultClass.PINNING
    assert f"refused {8 * GIB} B with 1" in found.message
    assert found.got == "return code 1"


def test_one_call_for_half_a_tebibyte() -> None:
    """Entry 94: pinning 512 GiB in one call needs 2 GiB of driver metadata.

    8 chunks of 64 GiB do not.
    """
    assert 512 * GIB // 4096 == 134_217_728
    assert metadata_bytes(512 * GIB) == 2_147_483_648 > DRIVER_MOST
    whole = Pinning(
        requested=True,
        pinned=True,
        return_code=0,
        bytes=512 * GIB,
        pinned_bytes=512 * GIB,
        largest_chunk=512 * GIB,
    )
    (found,) = check_pinning("kv", whole, time_ns=1)
    assert "2147483648" in found.message
    assert 512 // 64 == 8
    assert metadata_bytes(64 * GIB) < DRIVER_MOST
    assert metadata_bytes(CHUNK_BYTES) < DRIVER_MOST  # what our own pools register at a time


@pytest.mark.parametrize("claims", [True, False])
def test_copies_from_memory_that_is_not_pinned(*, claims: bool) -> None:
    """Entry 97: pinning 531,470,745,600 B fails with 1.

    Copies may be stale, whatever the pool claims.
    """
    size = 531_470_745_600
    state = Pinning(
        requested=True, pinned=claims, return_code=1, bytes=size, pinned_bytes=size * claims
    )
    (found,) = check_pinning("kv", state, time_ns=1)
    assert f"{size} B" in found.message
    assert "may return stale data" in found.message


def test_a_tier_that_never_served() -> None:
    """Entry 100: 1,000 pages written, 0 read, 50 lookups: the tier never served a page."""
    use = TierUse("storage")
    use.wrote(1000)
    found = [violation for _ in range(50) for violation in use.asked(BY)]
    assert [violation.cls for violation in found] == [FaultClass.DEAD_TIER]
    assert "1000 pages written, 50 lookups" in str(found[0])


def test_the_path_that_a_row_of_656_bytes_takes() -> None:
    """Entry 101: 656 is not a multiple of 128: the fallback path is reported once per pool."""
    assert (656 % 128, 640 % 128) == (16, 0)
    paths = Paths()
    told = [
        violation
        for pool, width in (("mla", 656), ("mla", 656), ("index_k", 640))
        for violation in paths.took(pool, "jit", "jit" if width % 128 == 0 else "fallback", BY)
    ]
    assert [(violation.cls, violation.pool) for violation in told] == [
        (FaultClass.DEAD_TIER, "mla")
    ]
