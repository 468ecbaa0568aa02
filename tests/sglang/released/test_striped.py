"""Host pools whose pages are distributed over the ranks that share them."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

from typing import Any

import pytest
import torch
from released_base import DESCRIBED, LAYERS
from released_driving import backup, indices, load
from released_rows import mla
from released_traced import Start

from hicache_dbg.tracer.events import Copied, FaultClass, Finding

pytestmark = pytest.mark.skipif(not DESCRIBED, reason="the class came later")
RANKS, RANK = 2, 1


def striped(setup: Any) -> Any:
    """Return SGLang's facade over a host pool, on the second of two ranks."""
    from sglang.srt.mem_cache.page_interleave import PageInterleavePlacement, PageShardSpec
    from sglang.srt.mem_cache.pool_host.page_interleave import PageInterleaveHostPool

    spec = PageShardSpec(
        shard_rank=RANK,
        shard_size=RANKS,
        page_size=setup.page,
        max_prefix_tokens=setup.page,
        chunk_tokens=setup.page,
    )
    return PageInterleaveHostPool(setup.pool, PageInterleavePlacement(spec))


def test_a_ranks_own_pages_come_back_verified(traced: Start) -> None:
    """The facade's allocations are narrowed to this rank's rows, which are compared."""
    run = traced()
    setup = mla("layer_first")
    facade = striped(setup)
    host = facade.alloc(4 * setup.page, start_owner=0)
    rows, _ = facade.owned_rows(host, host)
    assert len(rows) == 2 * setup.page
    backup(setup, rows, indices([1, 2], setup.page), "kernel")
    load(setup, rows, indices([4, 5], setup.page), "kernel")
    assert [event.mismatched for event in run.sink.of(Copied)] == [0, 0]
    assert run.sink.of(Copied)[-1].verified == 2 * LAYERS
    facade.free(host)
    assert run.sink.of(Finding) == []


def test_a_page_that_was_given_away_again_is_not_compared(traced: Start) -> None:
    """Freed and reallocated without a write, the rank's own page has another generation."""
    run = traced()
    setup = mla("layer_first")
    facade = striped(setup)
    host = facade.alloc(2 * setup.page, start_owner=0)
    rows, _ = facade.owned_rows(host, host)
    backup(setup, rows, indices([1], setup.page), "kernel")
    facade.free(host)
    while not torch.equal(
        facade.owned_rows(again := facade.alloc(8, start_owner=0), again)[0], rows
    ):
        pass
    setup.pool.kv_buffer.zero_()
    load(setup, rows, indices([2], setup.page), "kernel")
    assert run.sink.of(Copied)[-1].skipped == {"reused": LAYERS}
    assert run.sink.of(Finding) == []


def test_slots_freed_twice_are_found(traced: Start) -> None:
    """The facade's free list silently accepts a page twice."""
    run = traced()
    setup = mla("layer_first")
    facade = striped(setup)
    first, second = (facade.alloc(2 * setup.page, start_owner=0) for _ in range(2))
    facade.free(first)
    facade.free(first[: setup.page])
    facade.free(second)
    (finding,) = run.sink.of(Finding)
    assert (finding.cls, finding.pages) == (FaultClass.DOUBLE_FREE, (int(first[0]) // setup.page,))
