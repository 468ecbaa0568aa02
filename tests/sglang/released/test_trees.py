"""SGLang's own trees: lookups are counted, and loads are attributed to their requests."""

# mypy: disable-error-code="import-not-found,attr-defined"
# pyright: reportMissingImports=false

from array import array
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from released_base import NUMBER
from released_rows import mha_of_sglang
from released_traced import Start, Traced
from released_trees import batch, request

from hicache_dbg.tracer.events import Copied, Finding, Op
from hicache_dbg.tracer.sink import LookedUp

PAGE = 4


def allocator_over(device: Any) -> Any:
    """Return SGLang's paged allocator of a device pool."""
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator

    return PagedTokenToKVPoolAllocator(24, PAGE, torch.bfloat16, "cpu", device, need_sort=False)


def parameters(allocator: Any) -> Any:
    """Return the constructor arguments common to every tree."""
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams

    return CacheInitParams(
        disable=False,
        req_to_token_pool=SimpleNamespace(device="cpu"),
        token_to_kv_pool_allocator=allocator,
        page_size=PAGE,
    )


def keyed(tokens: int) -> Any:
    """Return a prefix of so many tokens."""
    from sglang.srt.mem_cache.radix_cache import RadixKey

    return RadixKey(array("q", range(tokens)), None)


def look_up(tree: Any, name: str, tokens: int) -> Any:
    """Look up a request's prefix."""
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

    return tree.match_prefix(MatchPrefixParams(key=keyed(tokens), req=request(name)))


def insert(tree: Any, tokens: int, value: torch.Tensor) -> None:
    """Insert a request's filled pages into the tree."""
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams

    tree.insert(InsertParams(key=keyed(tokens), value=value))


def counted(run: Traced, *names: str) -> dict[tuple[str, str], int]:
    """Return pages by tier and outcome, once these requests are in a batch."""
    run.attachment.hooks.lookups.batching(lambda _: None)(batch(*names))
    states = [state for state in run.attachment.pool_state() if isinstance(state, LookedUp)]
    return {(state.tier, state.end): state.pages for state in states if state.pages}


def radix(allocator: Any) -> Any:
    """Return the tree without any other tier."""
    from sglang.srt.mem_cache.radix_cache import RadixCache

    return RadixCache(parameters(allocator))


def unified(allocator: Any) -> Any:
    """Return the tree of components, in Python if there is a choice."""
    from sglang.srt.mem_cache.unified_cache.components import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    given = vars(parameters(allocator)) | {"tree_components": (ComponentType.FULL,)}
    if "tree_core_backend" in given:
        given["tree_core_backend"] = "python"
    return UnifiedRadixCache(type(parameters(allocator))(**given))


@pytest.mark.parametrize("build", [radix, unified])
def test_a_lookup_in_a_tree_on_the_device_is_counted(
    traced: Start, build: Callable[[Any], Any]
) -> None:
    """Three of five pages were found, the others missing."""
    if build is unified and NUMBER < (0, 5, 17):
        pytest.skip("made of other parts")
    run = traced()
    setup = mha_of_sglang("layer_first")
    allocator = allocator_over(setup.pool_device)
    tree = build(allocator)
    insert(tree, 3 * PAGE, allocator.alloc(3 * PAGE))
    look_up(tree, "a", 5 * PAGE)
    assert counted(run, "a") == {("device", "hit"): 3, ("none", "not_cached"): 2}


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one, which SGLang's trees require."""
    from torch import distributed

    store = distributed.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.skipif(NUMBER >= (0, 5, 18), reason="asks a published configuration, or is gone")
def test_a_prefix_that_comes_back_from_the_host_is_for_who_asked(
    traced: Start, monkeypatch: pytest.MonkeyPatch, alone: None
) -> None:
    """Through SGLang's own tree and controller: backed up, evicted, found on the host, loaded, verified."""
    from sglang.srt.mem_cache import hiradix_cache
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InitLoadBackParams

    del alone
    for name in ("MHATokenToKVPoolHost", "get_mha_host_pool_cls"):
        if hasattr(hiradix_cache, name):
            known = getattr(hiradix_cache, name)
            plain = (
                partial(known, pin_memory=False)
                if isinstance(known, type)
                else lambda pool, known=known: partial(known(pool), pin_memory=False)
            )
            monkeypatch.setattr(hiradix_cache, name, plain)
    run = traced()
    device = mha_of_sglang("layer_first").pool_device
    allocator = allocator_over(device)
    tree = hiradix_cache.HiRadixCache(parameters(allocator), server())
    tree.load_back_threshold = 1
    value = allocator.alloc(3 * PAGE)
    insert(tree, 3 * PAGE, value)
    look_up(tree, "first", 3 * PAGE)
    insert(tree, 3 * PAGE, value)  # once more: worth a backup under any policy
    tree.writing_check()
    tree.evict(EvictParams(num_tokens=3 * PAGE))
    found = look_up(tree, "second", 4 * PAGE)
    assert found.host_hit_length == 3 * PAGE
    tree.init_load_back(
        InitLoadBackParams(found.best_match_node, found.host_hit_length, req=request("second"))
    )
    tree.ready_to_load_host_cache()
    loaded = run.sink.of(Copied)[-1]
    assert (loaded.op, loaded.requests, loaded.mismatched) == (Op.LOAD, ("second",), 0)
    assert loaded.verified == loaded.tiles > 0
    assert run.sink.of(Finding) == []
    assert counted(run, "second") == {("host", "hit"): 3, ("none", "not_cached"): 1}


def server() -> Any:
    """Return the server arguments that the tree reads; everything else is unset."""

    class Arguments(SimpleNamespace):
        def __getattr__(self, name: str) -> None:
            if name.startswith("__"):
                raise AttributeError(name)

    return Arguments(
        hicache_ratio=2.0,
        hicache_size=0,
        hicache_mem_layout="layer_first",
        hicache_io_backend="kernel",
        hicache_write_policy="write_through",
    )
