"""A map from places to shared objects: each place keeps its own, and unused objects are dropped."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.tracer.checks import kept
from hicache_dbg.tracer.checks.kept import NONE, Kept

PLACES = 4
writes = st.lists(
    st.tuples(st.integers(0, 1), st.lists(st.integers(0, PLACES - 1), max_size=PLACES)),
    max_size=60,
)


@given(writes)
def test_each_place_has_the_thing_last_put_there(made: list[tuple[int, list[int]]]) -> None:
    """It equals a dict, even with frequent tidying, and the order is kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "_SLACK", 2)
        things: Kept[int] = Kept()
        arrays = things.numbers(PLACES), things.numbers(PLACES)
        model: dict[tuple[int, int], int] = {}
        for thing, (which, places) in enumerate(made):
            arrays[which][np.array(places, np.int64)] = things.number(thing)
            model |= {(which, place): thing for place in places}
            assert len(things.things) <= 2 * 2 * PLACES + 2
            assert list(things.things) == sorted(things.things)
            for which_, array in enumerate(arrays):
                for place in range(PLACES):
                    assert things.of(int(array[place])) == model.get((which_, place))


def test_the_more_places_the_rarer_it_is_tidied() -> None:
    """Tidying visits every place, so it waits for a number of objects that grows with the places."""
    few: Kept[int] = Kept()
    many: Kept[int] = Kept()
    few.numbers(10)
    many.numbers(1_000_000)
    for thing in range(5000):
        few.number(thing)
        many.number(thing)
    assert len(few.things) < 2000
    assert len(many.things) == 5000
    assert few.of(NONE) is None
