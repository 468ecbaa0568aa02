"""The controller: a gated read returns what was written, under any concurrent activity."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pools.caching import (
    LAYERS,
    accounted,
    group_of,
    sequences,
    turn,
    write,
    wrong_pages,
)

from hicache_dbg.pools.allocator import AllocatorError, OutOfPages
from hicache_dbg.pools.backups import WritePolicy
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.geometry import GeometryError, IoBackend, Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.kinds import index_k, mla
from hicache_dbg.pools.radix import RadixTree
from hicache_dbg.pools.radix_types import Policy, RadixError
from hicache_dbg.pools.transfer import TransferError

turns = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=25)


@settings(max_examples=60, deadline=None)
@given(
    choices=turns,
    policy=st.sampled_from(["write_through", "write_through_selective", "write_back"]),
    eviction=st.sampled_from(["lru", "lfu"]),
    pages=st.tuples(st.integers(5, 9), st.integers(1, 20)),
    layout=st.sampled_from([Layout.LAYER_FIRST, Layout.PAGE_FIRST]),
)
def test_what_is_read_is_what_was_written(
    choices: list[list[int]],
    policy: WritePolicy,
    eviction: Policy,
    pages: tuple[int, int],
    layout: Layout,
) -> None:
    """Under any pressure every gated read sees its own prefix's bytes, in every pool and layer."""
    group = group_of(*pages, layout)
    with HiCacheController(group, policy=policy, eviction=eviction) as controller:
        for tokens in sequences(choices):
            turn(controller, tokens)
            controller.check()
        controller.flush()
        controller.check()
        accounted(controller)


@pytest.mark.parametrize("policy", ["write_through", "write_through_selective", "write_back"])
def test_concurrent_readers_see_their_own_bytes(policy: WritePolicy) -> None:
    """Four threads on one small device read only what was written for their prefix."""
    rng = np.random.default_rng(7)
    choices = [[int(page) for page in rng.integers(0, 3, rng.integers(1, 5))] for _ in range(120)]
    with HiCacheController(group_of(device_pages=24, host_pages=64), policy=policy) as controller:
        with ThreadPoolExecutor(4) as readers:
            list(readers.map(lambda tokens: turn(controller, tokens), sequences(choices)))
        controller.flush()
        controller.check()
        accounted(controller)
        assert controller.stats.device_hit_pages > 0


def test_pressure_moves_pages_to_the_host_and_back() -> None:
    """Sequences that do not fit the device together are demoted and loaded back, not recomputed."""
    with HiCacheController(group_of(device_pages=6)) as controller:
        first, second = sequences([[1, 1, 1, 1], [2, 2, 2, 2]])
        for tokens in (first, second, first, second):
            turn(controller, tokens)
            controller.flush()
        stats = controller.stats
        assert stats.loads == 2
        assert stats.host_hit_pages == stats.loaded_pages
        assert stats.demoted_pages > 0
        assert stats.dropped_pages == 0
        assert stats.backed_up_pages == 8


@pytest.mark.parametrize(
    ("policy", "unbacked"), [("write_through", [4, 8]), ("write_back", [0, 4])]
)
def test_pages_that_the_host_has_no_room_for_are_counted_and_dropped(
    policy: WritePolicy, unbacked: list[int]
) -> None:
    """A host that is too small for a node keeps none of it: eviction drops what it cannot demote."""
    with HiCacheController(group_of(device_pages=4, host_pages=2), policy=policy) as controller:
        stats, seen = controller.stats, []
        for tokens in sequences([[1, 1, 1, 1], [2, 2, 2, 2]]):
            turn(controller, tokens)
            controller.flush()
            seen.append(stats.unbacked_pages)
        assert seen == unbacked
        assert (stats.dropped_pages, stats.demoted_pages, stats.backed_up_pages) == (4, 0, 0)


def test_no_more_is_evicted_than_is_asked_for() -> None:
    """With two pages free, a third costs the least recently used node and no other."""
    with HiCacheController(group_of(device_pages=6)) as controller:
        first, second = sequences([[1, 1], [2, 2]])
        for tokens in (first, second):
            turn(controller, tokens)
            controller.flush()
        controller.free_device(controller.alloc_device(3))
        assert controller.stats.demoted_pages == 2
        sizes = [controller.tree.match(tokens).device_pages.size for tokens in (first, second)]
        assert sizes == [0, 2]


def test_write_back_copies_only_what_the_device_lets_go_of() -> None:
    """Write-back copies nothing to the host until pages are evicted, and then loses none."""
    with HiCacheController(group_of(device_pages=6), policy="write_back") as controller:
        first, second = sequences([[1, 1, 1, 1], [2, 2, 2, 2]])
        turn(controller, first)
        assert controller.stats.backups == 0
        turn(controller, second)
        assert controller.stats.backed_up_pages == controller.stats.demoted_pages > 0
        assert controller.match(first).pages == 4


def test_selective_write_through_waits_for_a_second_use() -> None:
    """A page that was used once is not backed up; one that is used again is."""
    with HiCacheController(group_of(), policy="write_through_selective") as controller:
        (tokens,) = sequences([[1, 2]])
        turn(controller, tokens)
        turn(controller, tokens)
        controller.flush()
        assert controller.stats.backed_up_pages == 0
        turn(controller, tokens)
        controller.flush()
        assert controller.stats.backed_up_pages == 2


def test_a_retracted_reader_finds_its_pages_on_the_host() -> None:
    """Pages of a reader that was taken off the device are backed up whatever the policy."""
    with HiCacheController(group_of(device_pages=6), policy="write_back") as controller:
        (tokens,) = sequences([[1, 2, 3]])
        match = controller.match(tokens)
        pages = controller.alloc_device(3)
        write(controller.group, tokens, pages)
        controller.retract(match, tokens, pages)
        controller.flush()
        assert controller.stats.backed_up_pages == 3
        controller.free_device(controller.alloc_device(6))
        again = controller.match(tokens)
        assert again.host_pages.size == 3
        ticket = controller.load_back(again)
        assert controller.load_back(again) is ticket
        controller.wait_layer(LAYERS - 1, ticket)
        assert wrong_pages(controller.group, tokens, ticket.device_pages, 1) == []
        controller.unlock(again)


def test_a_match_knows_how_many_pages_were_asked_for_in_either_form() -> None:
    """Whole pages of the request, cached or not, from tokens or from their bytes."""
    with HiCacheController(group_of()) as controller:
        (tokens,) = sequences([[1, 2, 0]])
        whole = controller.tree.encode(tokens)
        for form, pages in ((tokens, 3), (tokens[:-1], 2), (whole, 3)):
            match = controller.match(form)
            assert (match.pages, match.asked) == (0, pages)
            controller.unlock(match)


def test_a_device_too_small_is_said_with_both_numbers() -> None:
    """If every page is held, the refusal has the number requested and the number available."""
    with HiCacheController(group_of(device_pages=4)) as controller:
        pages = controller.alloc_device(3)
        with pytest.raises(OutOfPages, match="2 pages wanted, 1 available"):
            controller.alloc_device(2)
        controller.free_device(pages)
        assert controller.alloc_device(4).size == 4


def test_pinned_pages_outlive_pressure() -> None:
    """A pinned prefix stays on the device until it is unpinned."""
    with HiCacheController(group_of(device_pages=6)) as controller:
        kept, other = sequences([[1, 1], [2, 2, 2, 2]])
        turn(controller, kept)
        match = controller.match(kept)
        controller.pin(match)
        controller.unlock(match)
        turn(controller, other)
        turn(controller, sequences([[0, 0, 0, 0]])[0])
        assert controller.tree.match(kept).device_pages.size == 2
        controller.unpin(match)
        controller.free_device(controller.alloc_device(6))
        assert controller.tree.match(kept).device_pages.size == 0


@pytest.mark.parametrize("policy", ["write_through", "write_back"])
def test_every_call_of_the_tree_is_made_under_the_lock(policy: WritePolicy) -> None:
    """The tree itself is not thread-safe: readers and workers call it with the cache's lock held."""
    calls: Counter[tuple[str, bool]] = Counter()
    with HiCacheController(group_of(device_pages=6), policy=policy) as controller:
        tree, lock = controller.tree, controller._state.changed

        def watched(name: str) -> Callable[..., object]:
            own = getattr(tree, name)

            def call(*args: object, **more: object) -> object:
                calls[name, lock._is_owned()] += 1  # type: ignore[attr-defined]
                return own(*args, **more)

            return call

        names = [
            name for name in vars(RadixTree) if name[0] != "_" and callable(getattr(tree, name))
        ]
        for name in names:
            setattr(tree, name, watched(name))
        *others, tokens = sequences([[1, 1, 1, 1], [2, 2, 2, 2], [1, 1, 1, 1], [0, 0]])
        for one in (*others, tokens):
            turn(controller, one)
        match = controller.match(tokens)
        controller.pin(match)
        controller.unpin(match)
        controller.retract(match, tokens, match.device_pages)
        controller.flush()
        controller.check()
    assert {name for name, owned in calls if not owned} <= {"encode"}
    assert {"match", "insert", "lock", "unlock", "pin", "unpin", "set_host", "evict_device"} <= {
        name for name, owned in calls if owned
    }


@pytest.mark.parametrize("tier", ["device", "host"])
@pytest.mark.parametrize("twice", [False, True])
def test_the_check_sees_pages_that_the_tree_should_not_have(tier: str, *, twice: bool) -> None:
    """A cached page that is free, or is cached in two places, is a broken state in either tier."""
    with HiCacheController(group_of()) as controller:
        turn(controller, sequences([[1, 2]])[0])
        controller.flush()
        controller.check()
        pages = getattr(next(controller.tree.nodes()), tier)
        assert pages.size == 2
        if twice:
            setattr(next(controller.tree.nodes()), tier, pages[[0, 0]])
        else:
            getattr(controller._state, tier).free(pages[:1])
        told = (
            f"{tier} page ids are in the tree more than once" if twice else f"cached {tier} page is"
        )
        with pytest.raises((AssertionError, RadixError), match=told):
            controller.check()


@pytest.mark.parametrize("tier", ["device", "host"])
def test_the_check_includes_the_allocators_own(tier: str) -> None:
    """Readers of a free page are a broken state."""
    with HiCacheController(group_of()) as controller:
        getattr(controller._state, tier)._readers[:] = 1
        with pytest.raises(AllocatorError, match="a free page has open readers"):
            controller.check()


def test_a_match_is_unlocked_once() -> None:
    """A second unlock or a later pin is refused: the lock may be another reader's by then."""
    with HiCacheController(group_of()) as controller:
        match = controller.match(sequences([[1]])[0])
        controller.unlock(match)
        for again in (controller.unlock, controller.pin):
            with pytest.raises(ValueError, match="unlocked already"):
                again(match)


def test_pools_that_disagree_in_pages_have_no_common_anchor() -> None:
    """Pools whose pages stand for different tokens cannot share ids."""
    with pytest.raises(
        GeometryError, match="dsa_index_k has 8 tokens a page, its anchor mla has 4"
    ):
        PoolGroup.build(
            [mla(1, 4), index_k(1, 8)], device_pages=2, host_pages=2, layout=Layout.LAYER_FIRST
        )


def test_unknown_policies_are_refused() -> None:
    """An unknown policy is refused with the known ones."""
    with pytest.raises(ValueError, match=r"'write_never'.*write_through_selective"):
        HiCacheController(group_of(), policy="write_never")  # type: ignore[arg-type]


def test_an_io_backend_that_cannot_serve_the_layout_is_reported() -> None:
    """The copy fails with an error, and nothing counts as backed up."""
    controller = HiCacheController(group_of(layout=Layout.PAGE_FIRST), io_backend=IoBackend.DIRECT)
    offered: list[int] = []
    controller._state.on_host_copy = lambda _, pages: offered.append(pages)
    turn(controller, sequences([[1]])[0])
    with pytest.raises(TransferError, match="direct cannot serve layout page_first"):
        controller.flush()
    assert (controller.stats.failed_backups, controller.stats.backed_up_pages) == (1, 0)
    assert offered == []
    controller.close()


def test_a_closed_controller_refuses_instead_of_waiting_for_nobody() -> None:
    """After close the workers are gone: match, insert and load_back refuse at once."""
    group = PoolGroup.build([mla(1, 4)], device_pages=4, host_pages=4, layout=Layout.LAYER_FIRST)
    controller = HiCacheController(group)
    pages = controller.alloc_device(1)
    controller.close()
    with pytest.raises(ValueError, match="closed"):
        controller.insert(np.arange(4, dtype=np.int32), pages)
    with pytest.raises(ValueError, match="closed"):
        controller.match(np.arange(4, dtype=np.int32))
    assert controller.stats.backups == 0
