"""The last access to each tile: what is kept, and that no more than that is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.tracer.checks import ordering_last
from hicache_dbg.tracer.checks.ordering_clocks import Step
from hicache_dbg.tracer.checks.ordering_last import Last, Role
from hicache_dbg.tracer.checks.violation import Access

TILES = 8
accesses = st.lists(
    st.tuples(
        st.sampled_from(Role), st.lists(st.integers(0, TILES - 1), min_size=1, max_size=TILES)
    ),
    min_size=1,
    max_size=40,
)


@given(accesses)
def test_each_tile_has_its_own_last_access(made: list[tuple[Role, list[int]]]) -> None:
    """As one dict by tile would have it, also when what nobody has any more is dropped often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordering_last, "_SLACK", 2)
        last = Last(TILES)
        model: dict[int, tuple[int, Role, Access]] = {}
        for step, (role, tiles) in enumerate(made, start=1):
            by = Access(f"access {step}", "stream")
            last.take(np.array(tiles), Step(step), role, by)
            model |= dict.fromkeys(tiles, (step, role, by))
            assert last.latest == step
            seen = np.array(sorted(model))
            assert [
                (step, *made)
                for step, made in zip(last.steps[seen].tolist(), last.made(seen), strict=True)
            ] == [model[tile] for tile in sorted(model)]
            assert last.kept <= 2 * TILES + 2


def test_a_tile_that_nobody_accessed_has_no_step() -> None:
    """Step 0 is before everything, so such a tile conflicts with nothing."""
    last = Last(TILES)
    last.take(np.array([3]), Step(7), Role.LOAD_WRITE, Access("load", "stream"))
    assert last.steps.tolist() == [0, 0, 0, 7, 0, 0, 0, 0]
