"""The copy engines' runs, carried out by plain memory moves."""

from ctypes import memmove

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pools.copying import COMBINATIONS, KINDS, Combination, name_of
from tests.pools.staging import PageIds, Staged, page_ids

from hicache_dbg.pools import cuda_runs
from hicache_dbg.pools.cuda_runs import Runs


@pytest.mark.parametrize(
    "combination", [item for item in COMBINATIONS if item[2] == "direct"], ids=name_of
)
@settings(max_examples=6, deadline=None)
@given(ids=page_ids(5, 6), in_runs=st.booleans(), chunk=st.sampled_from([96, 1000, 1 << 30]))
def test_runs_are_the_bytes_of_the_pages_and_cross_no_registered_chunk(
    combination: Combination, ids: PageIds, in_runs: bool, chunk: int
) -> None:
    """Runs move exactly the pages' bytes, and none crosses a border between registered chunks."""
    host, device = (sorted(one) if in_runs else one for one in ids)
    staged = Staged.of(combination, "backup", (host, device), 2, (5, 6), seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_runs, "CHUNK_BYTES", chunk)
        for piece in staged.move.pieces:
            base = piece.host.buffer.tensors[0].data_ptr()
            for target, source, size in zip(*Runs(staged.move, piece).at((0, 1)), strict=True):
                assert (target - base) // chunk == (target - base + size - 1) // chunk
                memmove(int(target), int(source), int(size))
    staged.assert_moved()


def test_neighbouring_pages_become_one_run() -> None:
    """Pages that are adjacent at both ends are one copy per layer, not one per page."""
    combination = ("index_k_fp8", *COMBINATIONS[0][1:])
    ids = [1, 2, 3, 0], [2, 3, 4, 5]
    move = Staged.of(combination, "backup", ids, 2, (5, 6), seed=1).move
    page = KINDS["index_k_fp8"](1).page_bytes()
    _, _, sizes = Runs(move, move.pieces[0]).at((0, 1))
    assert sizes.tolist() == [3 * page, page] * 2
