"""Find the simplest case that still breaks, with hypothesis (optional, from the extra ``cli``)."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar, get_args

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from hicache_dbg.pools.backups import WritePolicy
from hicache_dbg.repro.explore_cases import EAGERNESS, Case, Operation

__all__ = ["simplest"]

T = TypeVar("T")

#: Number of other orders to try: with fewer operations, another order may be needed to break.
SEEDS = 16
#: How much likelier the original value is tried than each simpler one.
WEIGHT = 16
_SETTINGS = settings(
    max_examples=400,
    database=None,
    derandomize=True,
    deadline=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
)


def simplest(case: Case, breaks: Callable[[Case], bool]) -> Case:
    """Return the breaking case with fewest operations, pages and switches derived from ``case``.

    Operations are removed or made smaller, never added or reordered.
    """
    try:
        return find(_parts_of(case), breaks, settings=_SETTINGS)
    except NoSuchExample:  # no simpler case breaks
        return case


def _parts_of(case: Case) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        st.tuples(*map(_smaller, case.operations)).map(
            lambda some: tuple(one for one in some if one is not None)
        ),
        _mostly(case.seed, range(SEEDS)),
        _mostly(case.eagerness, (some for some in EAGERNESS if some < case.eagerness)),
        _mostly(case.policy, get_args(WritePolicy)[:1]),
    )


def _smaller(one: Operation) -> st.SearchStrategy[Operation | None]:
    """Draw None, or the same operation with smaller numbers."""

    def build(kept: bool, pages: int, sequence: int, reader: int) -> Operation | None:
        return replace(one, pages=pages, sequence=sequence, reader=reader) if kept else None

    return st.builds(
        build,
        _mostly(True, (False,)),  # noqa: FBT003 - the values that are drawn
        _mostly(one.pages, range(1, one.pages)),
        _mostly(one.sequence, range(one.sequence)),
        _mostly(one.reader, range(one.reader)),
    )


def _mostly(usual: T, simpler: Iterable[T]) -> st.SearchStrategy[T]:
    """Draw ``usual`` most of the time, so that the search starts near what broke."""
    return st.sampled_from((*simpler, *[usual] * WEIGHT))
