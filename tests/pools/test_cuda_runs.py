"""What the copy engines are asked to do, carried out here by plain memory moves."""

from ctypes import memmove

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pools.copying import (
    COMBINATIONS,
    Combination,
    assert_equal,
    canaries_live,
    mirror_of,
    name_of,
    snapshot,
)

from hicache_dbg.pools import cuda_runs
from hicache_dbg.pools.cuda_runs import Runs
from hicache_dbg.pools.indices import Indices
from hicache_dbg.pools.operation import PoolCopy
from hicache_dbg.pools.validate import move_of


@pytest.mark.parametrize(
    "combination", [item for item in COMBINATIONS if item[2] == "direct"], ids=name_of
)
@settings(max_examples=6, deadline=None)
@given(
    ids=st.tuples(st.permutations(range(5)), st.permutations(range(6))),
    count=st.integers(1, 5),
    in_runs=st.booleans(),
    chunk=st.sampled_from([96, 1000, 1 << 30]),
)
def test_runs_are_the_bytes_of_the_pages_and_cross_no_registered_chunk(
    combination: Combination,
    ids: tuple[list[int], list[int]],
    count: int,
    in_runs: bool,
    chunk: int,
) -> None:
    """Runs move exactly the pages' bytes, and none crosses a border between registered chunks."""
    kind, layout, backend = combination
    mirror, memories = mirror_of(kind, layout, layers=2, host_pages=5, device_pages=6, seed=1)
    host_ids, device_ids = (sorted(i)[:count] if in_runs else i[:count] for i in ids)
    host, device = snapshot(mirror.host), snapshot(mirror.device)
    for name in host:
        host[name][:, host_ids] = device[name][:, device_ids]
    geometry = mirror.device.geometry
    copy = PoolCopy(
        mirror,
        Indices.pages(host_ids, geometry),
        Indices.pages(device_ids, geometry),
        token_granular=False,
        io_backend=backend,
        layers=(0, 1),
    )
    move = move_of(copy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_runs, "CHUNK_BYTES", chunk)
        for piece in move.pieces:
            base = piece.host.buffer.tensors[0].data_ptr()
            for target, source, size in zip(*Runs(move, piece).at((0, 1)), strict=True):
                assert (target - base) // chunk == (target - base + size - 1) // chunk
                memmove(int(target), int(source), int(size))
    assert_equal(mirror, host, device)
    assert canaries_live(memories)


def test_neighbouring_pages_become_one_run() -> None:
    """Pages that follow each other at both ends are one copy a layer, not one a page."""
    mirror, _ = mirror_of(
        "index_k_fp8", COMBINATIONS[0][1], layers=2, host_pages=5, device_pages=6, seed=1
    )
    geometry = mirror.device.geometry
    copy = PoolCopy(
        mirror,
        Indices.pages([1, 2, 3, 0], geometry),
        Indices.pages([2, 3, 4, 5], geometry),
        token_granular=False,
        io_backend=COMBINATIONS[0][2],
        layers=(0, 1),
    )
    move = move_of(copy)
    page = geometry.page_bytes()
    _, _, sizes = Runs(move, move.pieces[0]).at((0, 1))
    assert sizes.tolist() == [3 * page, page] * 2
