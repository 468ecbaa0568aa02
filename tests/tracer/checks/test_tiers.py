"""Tiers that are written and never answer, and paths that nobody selected."""

from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.tracer.checks.tiers import LOOKUPS, LOOKUPS_AT_CLOSE, Paths, TierUse
from hicache_dbg.tracer.checks.violation import Access
from hicache_dbg.tracer.events import FaultClass

BY = Access("match", "reader")


def test_a_tier_that_never_served_is_told_once() -> None:
    """It is reported at the lookup that exceeds the limit, and not again."""
    use = TierUse("storage")
    use.wrote(1000)
    told = [use.asked(BY) for _ in range(2 * LOOKUPS)]
    assert [bool(found) for found in told].index(True) == LOOKUPS - 1
    (violation,) = told[LOOKUPS - 1]
    assert (violation.cls, sum(map(len, told))) == (FaultClass.DEAD_TIER, 1)
    assert "1000 pages written, 50 lookups" in str(violation)
    assert use.closed(BY) == []


def test_at_the_end_fewer_lookups_are_enough() -> None:
    """A short run cannot make as many."""
    use = TierUse("host")
    use.wrote(8)
    assert [use.asked(BY) for _ in range(LOOKUPS_AT_CLOSE)] == [[]] * LOOKUPS_AT_CLOSE
    assert use.closed(BY)[0].cls is FaultClass.DEAD_TIER


@given(written=st.integers(0, 9), lookups=st.integers(0, 99), served=st.integers(0, 9))
def test_a_tier_that_served_or_holds_nothing_or_was_not_asked_is_not_dead(
    written: int, lookups: int, served: int
) -> None:
    """It is dead exactly if it was written, was looked up often enough, and returned nothing."""
    use = TierUse("host")
    use.wrote(written)
    use.gave(served)
    found = [violation for _ in range(lookups) for violation in use.asked(BY)] + use.closed(BY)
    dead = bool(written) and not served and lookups >= LOOKUPS_AT_CLOSE
    assert bool(found) is dead


def test_a_fallback_is_told_once_a_pool_and_path() -> None:
    """The selected path is no finding; another one is, with both names."""
    paths = Paths()
    assert paths.took("kv", "kernel", "kernel", BY) == []
    (violation,) = paths.took("kv", "kernel", "direct", BY)
    assert (violation.cls, violation.pool) == (FaultClass.DEAD_TIER, "kv")
    assert (violation.expected, violation.got) == ("path kernel", "path direct")
    assert paths.took("kv", "kernel", "direct", BY) == []
    assert len(paths.took("index_k", "kernel", "direct", BY)) == 1
