"""SGLang's tree of components end to end: inserted, backed up, evicted, loaded, unchanged."""

# mypy: disable-error-code="import-not-found,attr-defined"
# pyright: reportMissingImports=false

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from released_base import NUMBER
from released_traced import Start, Traced
from released_trees import batch
from released_unified import STACKS, Stack, configured, stack

from hicache_dbg.tracer.events import Copied, FaultClass, Finding, Op, Started
from hicache_dbg.tracer.sink import LookedUp

pytestmark = pytest.mark.skipif(NUMBER < (0, 5, 18), reason="has no such tree with a host cache")

Made = Callable[..., tuple[Traced, Stack]]


@pytest.fixture
def made(traced: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Attach, then build a stack in a group of one process."""
    from torch import distributed

    store = distributed.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)

    def make(name: str, layout: str = "layer_first") -> tuple[Traced, Stack]:
        memory = configured(monkeypatch, layout)
        return traced(), stack(name, memory)

    yield make
    distributed.destroy_process_group()
    gc.collect()  # a tree and its components hold each other


@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
@pytest.mark.parametrize("name", STACKS)
def test_pages_go_to_the_host_and_come_back_for_who_asked(
    made: Made, name: str, layout: str
) -> None:
    """Each tile of every pool is verified, with one operation per direction; the load names its request."""
    run, cache = made(name, layout)
    cache.insert(3)
    cache.look_up("first", 3)
    cache.evict(3)
    second, found = cache.look_up("second", 4)
    assert found.host_hit_length == 3 * cache.page
    assert cache.load(second, found) == 3 * cache.page
    assert run.sink.of(Finding) == []
    copies = run.sink.of(Copied)
    assert {(event.op, event.pool) for event in copies} == {
        (op, pool) for op in (Op.BACKUP, Op.LOAD) for pool in cache.pools
    }
    assert all(event.verified == event.tiles > 0 for event in copies)
    assert {event.requests for event in copies if event.op is Op.LOAD} == {("second",)}
    assert len({event.op_id for event in copies}) == 2
    assert run.sink.of(Started)[-1].unrecognised == ()
    run.attachment.hooks.lookups.batching(lambda _: None)(batch("second"))
    states = [one for one in run.attachment.pool_state() if isinstance(one, LookedUp)]
    assert {(one.tier, one.end): one.pages for one in states if one.pages} == {
        ("host", "hit"): 3,
        ("none", "not_cached"): 1,
    }


@pytest.mark.parametrize("name", STACKS)
def test_a_byte_that_changed_on_the_host_is_found_in_the_load(made: Made, name: str) -> None:
    """The finding has its pool, layer and page, and the request that got the page."""
    run, cache = made(name)
    cache.insert(3)
    entry = cache.tree.host_pool_group.entries[-1]
    view = next(iter(run.record(entry.host_pool).mirror.host.values()))
    assert isinstance(view.owner, tuple)
    layer: torch.Tensor = view.owner[1]
    backed_up = next(e for e in run.sink.of(Copied) if e.pool == cache.pools[-1])
    page = backed_up.host_pages[1]
    flat = layer[page : page + 1] if len(layer) == view.pages else layer[page * view.slots_per_page]
    flat.view(torch.uint8).reshape(-1)[0] ^= 0xFF
    cache.evict(3)
    request, found = cache.look_up("asks", 3)
    cache.load(request, found)
    (finding,) = run.sink.of(Finding)
    assert (finding.cls, finding.pool) == (FaultClass.BIT_FLIP, cache.pools[-1])
    assert (finding.layer, finding.pages, finding.requests) == (1, (page,), ("asks",))


def test_pages_that_left_the_host_are_others_when_they_come_again(made: Made) -> None:
    """Evicted from both tiers, recomputed, backed up and loaded: verified against the new bytes."""
    run, cache = made("mha")
    cache.insert(3)
    cache.evict(3)
    cache.tree.evict_host(3 * cache.page)
    _, found = cache.look_up("first", 3)
    assert found.host_hit_length == 0
    for tensor in cache.allocator.get_kvcache().k_buffer:
        tensor.view(torch.uint8).random_(0, 256)
    cache.insert(3)
    cache.evict(3)
    second, found = cache.look_up("second", 3)
    assert cache.load(second, found) == 3 * cache.page
    assert run.sink.of(Finding) == []
    assert sum(event.mismatched for event in run.sink.of(Copied)) == 0
    assert run.sink.of(Copied)[-1].verified == 3 * 2 * 2
