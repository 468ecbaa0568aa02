"""All failures are counted, few are kept, and each is reported once."""

import numpy as np
import pytest

from hicache_dbg.pools.failures import MOST, Failures
from hicache_dbg.pools.transfer import CopyOp, TransferError


def failed(number: int) -> CopyOp:
    """Return a failed operation on two pages."""
    return CopyOp(number, "load", (), np.ones(2, np.uint32))


def test_a_cache_that_keeps_failing_keeps_few_errors_and_counts_all() -> None:
    """Even if nobody asks, the first error is kept, and the count covers all."""
    failures = Failures()
    for number in range(10 * MOST):
        failures.add(failed(number), OSError(f"number {number}"))
    assert len(failures._failures) == MOST
    with pytest.raises(
        TransferError, match=rf"^failed copies: {10 * MOST}, first load 0 .* number 0"
    ):
        failures.report()
    failures.report()  # told once, and forgotten


def test_failures_that_readers_were_told_of_make_room_first() -> None:
    """However many were reported, an unreported one is still there at the end."""
    failures = Failures()
    failures.add(failed(0), OSError("nobody waited"))
    for number in range(1, 10 * MOST):
        failures.add(failed(number), OSError("told"))
        failures.told(number)
    with pytest.raises(TransferError, match=r"^failed copies: 1, first load 0 .* nobody waited"):
        failures.report(untold_only=True)
