"""The last access to each tile: what is kept, and that no more is kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.tracer.checks import kept
from hicache_dbg.tracer.checks.ordering_clocks import Step
from hicache_dbg.tracer.checks.ordering_last import Last, Role
from hicache_dbg.tracer.checks.violation import Access

LAYERS, PAGES = 3, 5
some_layers = st.lists(st.integers(0, LAYERS - 1), min_size=1, unique=True).map(sorted).map(tuple)
some_pages = st.lists(st.integers(0, PAGES - 1), min_size=1, max_size=PAGES)
accesses = st.lists(
    st.tuples(st.sampled_from(Role), some_layers, some_pages), min_size=1, max_size=40
)
Tile = tuple[int, int]


def later(
    last: Last, layers: tuple[int, ...], pages: list[int], seen: int
) -> dict[Role, tuple[set[Tile], Access]]:
    """Return the result of :meth:`Last.late` as sets of (layer, page)."""
    told = last.late(layers, np.array(pages), Step(seen))
    return {
        role: (set(zip(rows.tolist(), columns.tolist(), strict=True)), by)
        for role, (rows, columns, by) in told.items()
    }


@given(made=accesses, asked=st.tuples(some_layers, some_pages), ago=st.integers(0, 5))
def test_each_tile_has_its_own_last_access(
    made: list[tuple[Role, tuple[int, ...], list[int]]],
    asked: tuple[tuple[int, ...], list[int]],
    ago: int,
) -> None:
    """It equals a dict by tile, even with frequent tidying."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "_SLACK", 2)
        last = Last(LAYERS, PAGES)
        model: dict[Tile, tuple[int, Role, Access]] = {}
        for step, (role, layers, pages) in enumerate(made, start=1):
            by = Access(f"access {step}", "stream")
            last.take(layers, np.array(pages), Step(step), role, by)
            model |= {(layer, page): (step, role, by) for layer in layers for page in pages}
            assert last.latest == step
            seen, tiles = step - ago, [(layer, page) for layer in asked[0] for page in asked[1]]
            late = [tile for tile in tiles if tile in model and model[tile][0] > seen]
            told = later(last, *asked, seen)
            assert {tile for found, _ in told.values() for tile in found} == set(late)
            for told_role, (found, first) in told.items():
                of_role = [tile for tile in late if model[tile][1] is told_role]
                assert found == set(of_role)
                assert first == model[of_role[0]][2]


def test_a_tile_that_nobody_accessed_is_never_late() -> None:
    """Step 0 precedes everything, so such a tile conflicts with nothing."""
    last = Last(LAYERS, PAGES)
    load = Access("load", "stream")
    last.take((1,), np.array([3]), Step(7), Role.LOAD_WRITE, load)
    every = tuple(range(LAYERS)), list(range(PAGES))
    assert later(last, *every, seen=0) == {Role.LOAD_WRITE: ({(1, 3)}, load)}
    assert later(last, *every, seen=7) == {}
