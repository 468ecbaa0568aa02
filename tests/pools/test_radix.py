"""The prefix tree's edge cases, one by one."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.pools.radix import Node, PageIds, Policy, RadixError, RadixTree
from hicache_dbg.pools.radix_input import common_pages

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

PAGE = 2


def ids(*numbers: int) -> PageIds:
    """Return page ids."""
    return np.array(numbers, dtype=np.int64)


def chain(*numbers: int) -> npt.NDArray[np.int64]:
    """Return one page of tokens a number."""
    return np.repeat(np.array(numbers, dtype=np.int64), PAGE)


@pytest.fixture
def tree() -> RadixTree:
    """Return an empty tree."""
    return RadixTree(PAGE)


@given(
    edge=st.lists(st.integers(0, 1), min_size=1, max_size=40),
    key=st.lists(st.integers(0, 1), min_size=1, max_size=40),
    offset=st.integers(0, 3),
)
def test_common_pages_is_a_page_by_page_compare(
    edge: list[int], key: list[int], offset: int
) -> None:
    """However long the shared run, its end is found to the page."""
    key[0] = edge[0]
    shared = next(
        (i for i, (a, b) in enumerate(zip(edge, key, strict=False)) if a != b),
        min(len(edge), len(key)),
    )
    step = 4 * PAGE
    data = b"\xff" * offset * step + chain(*key).astype("<i4").tobytes()
    view = memoryview(chain(*edge).astype("<i4").tobytes())
    # What lies behind the end must not count, even where it would match.
    padded = data + bytes(view)
    assert common_pages(padded, offset * step, len(data), view, step) == shared


@pytest.mark.parametrize("at", range(3 * PAGE))
def test_one_different_token_ends_the_match_at_its_page(tree: RadixTree, at: int) -> None:
    """The tokens are compared, not a digest of the page."""
    tokens = chain(1, 2, 3)
    tree.insert(tokens, ids(7, 8, 9))
    other = tokens.copy()
    other[at] += 1 << 20
    assert tree.match(other).pages == at // PAGE


@pytest.mark.parametrize("token", [2**31, -(2**31) - 1, 1 + 2**32, 2**63 - 1])
def test_a_token_beyond_int32_is_refused(tree: RadixTree, token: int) -> None:
    """Truncated to 32 bits it would match another sequence's pages."""
    tree.insert(chain(1), ids(7))
    with pytest.raises(RadixError, match="expected int32"):
        tree.match(np.array([1, token], dtype=np.int64))


@pytest.mark.parametrize("token", [2**31 - 1, -(2**31), -1, 0])
def test_every_int32_token_is_a_key(tree: RadixTree, token: int) -> None:
    """Padding and negative special ids are ordinary tokens."""
    tree.insert(chain(token), ids(7))
    assert tree.match(chain(token)).device_pages.tolist() == [7]


def test_every_form_of_tokens_is_the_same_key(tree: RadixTree) -> None:
    """Int64, int32, strided and encoded tokens match each other."""
    wide = chain(1, 2, 3)
    tree.insert(wide, ids(7, 8, 9))
    strided = np.repeat(wide, 2)[::2]
    for form in (wide, wide.astype(np.int32), strided, tree.encode(wide)):
        assert tree.match(form).pages == 3


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (np.zeros((2, 2), dtype=np.int64), "2-d array of int64"),
        (np.zeros(4, dtype=np.float64), "1-d array of float64"),
        (np.zeros(4, dtype=np.int16), "1-d array of int16"),
        (b"12345", "5 bytes long"),
    ],
)
def test_tokens_of_another_kind_are_refused(tree: RadixTree, tokens: object, text: str) -> None:
    """The message names what was given."""
    with pytest.raises(RadixError, match=text):
        tree.match(tokens)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given_pages", "text"),
    [
        (ids(1), "1 device pages for 2 whole pages"),
        (ids(1, -1), "page id -1"),
        (np.zeros(2, dtype=np.int32), "array of int32"),
    ],
)
def test_page_ids_that_do_not_fit_change_nothing(
    tree: RadixTree, given_pages: PageIds, text: str
) -> None:
    """A refused insert leaves no page behind."""
    with pytest.raises(RadixError, match=text):
        tree.insert(chain(1, 2), given_pages)
    assert tree.stats.pages == 0
    tree.check()


def test_a_tree_needs_a_page_and_a_policy() -> None:
    """Both are validated at construction."""
    with pytest.raises(RadixError, match="page_size is 0"):
        RadixTree(0)
    with pytest.raises(RadixError, match="'fifo'"):
        RadixTree(1, "fifo")  # type: ignore[arg-type]


def test_unlock_below_zero_is_an_error_even_under_anothers_lock(tree: RadixTree) -> None:
    """A lock on a descendant does not lend its count to the nodes above it."""
    inner = tree.insert(chain(1), ids(7)).node
    leaf = tree.insert(chain(1, 2), ids(7, 8)).node
    tree.lock(leaf)
    with pytest.raises(RadixError, match="has no lock"):
        tree.unlock(inner)
    with pytest.raises(RadixError, match="has no pin"):
        tree.unpin(leaf)
    tree.unlock(leaf)
    with pytest.raises(RadixError, match="has no lock"):
        tree.unlock(leaf)
    tree.check()


def test_a_handle_outlives_a_split(tree: RadixTree) -> None:
    """A lock, a backup and a load taken before a split still end where they began."""
    node = tree.insert(chain(1, 2, 3), ids(7, 8, 9)).node
    tree.lock(node)
    front = tree.insert(chain(1, 5), ids(7, 6)).node.parent
    assert front is not None
    assert tree.set_host(node, ids(70, 80, 90)).size == 0
    assert front.host.tolist() == [70]
    assert node.host.tolist() == [80, 90]
    tree.unlock(node)
    assert tree.stats.evictable_device == 4
    tree.check()


def test_a_removed_node_is_refused(tree: RadixTree) -> None:
    """A node evicted between match and lock cannot be held, backed up or loaded."""
    node = tree.insert(chain(1), ids(7)).node
    assert tree.evict_device(1)[0].removed
    calls: list[Callable[[], object]] = [
        lambda: tree.lock(node),
        lambda: tree.pin(node),
        lambda: tree.set_host(node, ids(70)),
        lambda: tree.set_device(node, ids(7)),
        lambda: tree.remove(node),
        lambda: tree.unbacked(node),
    ]
    for call in calls:
        with pytest.raises(RadixError, match="no longer in the tree"):
            call()
    tree.check()


def test_copies_must_begin_where_a_node_begins(tree: RadixTree) -> None:
    """Copying half a node would leave it in two states."""
    node = tree.insert(chain(1, 2), ids(7, 8)).node
    with pytest.raises(RadixError, match="1 past one"):
        tree.set_host(node, ids(80))
    with pytest.raises(RadixError, match="shorter by 2"):
        tree.set_host(node, ids(70, 80, 90, 100))
    assert tree.stats.host_pages == 0
    tree.check()


def test_a_load_must_reach_up_to_the_device(tree: RadixTree) -> None:
    """A device page below a host-only one could never be matched on the device."""
    tree.insert(chain(1), ids(7))
    node = tree.insert(chain(1, 2), ids(7, 8)).node
    tree.set_host(node, ids(70, 80))
    tree.evict_device(2)
    with pytest.raises(RadixError, match="load a prefix first"):
        tree.set_device(node, ids(8))
    assert tree.set_device(node, ids(1, 2)).size == 0
    tree.check()


@pytest.mark.parametrize("pages", [1, 2, 3])
def test_a_continuation_moves_without_what_is_above_it(tree: RadixTree, pages: int) -> None:
    """However many pages the node above has, its own copies stay as they are."""
    above = list(range(1, pages + 1))
    top = tree.insert(chain(*above), ids(*above)).node
    tree.set_host(top, ids(*(10 * page for page in above)))
    leaf = tree.insert(chain(*above, 9), ids(*above, 9)).node
    assert tree.set_host(leaf, ids(90)).tolist() == []
    assert tree.evict_device(1)[0].node is leaf
    assert tree.set_device(leaf, ids(8)).tolist() == []
    assert tree.match(chain(*above, 9)).device_pages.tolist() == [*above, 8]
    assert (top.host.tolist(), leaf.host.tolist()) == ([10 * page for page in above], [90])
    tree.check()


def test_two_loads_of_one_page_give_one_back(tree: RadixTree) -> None:
    """The second to arrive returns its page, so that it is not lost."""
    node = tree.insert(chain(1), ids(7)).node
    tree.set_host(node, ids(70))
    tree.evict_device(1)
    assert tree.set_device(node, ids(8)).tolist() == []
    assert tree.set_device(node, ids(9)).tolist() == [9]
    assert tree.match(chain(1)).device_pages.tolist() == [8]


def test_what_is_not_backed_up_is_listed_from_the_root_down(tree: RadixTree) -> None:
    """A write-through queue backs a prefix up before its continuations."""
    top = tree.insert(chain(1), ids(7)).node
    middle = tree.insert(chain(1, 2), ids(7, 8)).node
    leaf = tree.insert(chain(1, 2, 3), ids(7, 8, 9)).node
    tree.set_host(middle, ids(80))
    assert tree.unbacked(leaf) == [top, leaf]


def test_lru_evicts_what_was_used_longest_ago(tree: RadixTree) -> None:
    """A match makes old pages recent."""
    tree.insert(chain(1), ids(1))
    tree.insert(chain(2), ids(2))
    tree.match(chain(1))
    assert [e.device_pages.tolist() for e in tree.evict_device(2)] == [[2], [1]]


def test_an_insert_is_a_use_of_the_host_copies_too(tree: RadixTree) -> None:
    """A recomputed prefix counts as used at both ends."""
    for page in (1, 2):
        tree.set_host(tree.insert(chain(page), ids(page)).node, ids(10 * page))
    tree.insert(chain(1), ids(1))
    assert [e.host_pages.tolist() for e in tree.evict_host(2)] == [[20], [10]]


def test_lfu_evicts_what_was_matched_least() -> None:
    """One recent use does not outweigh two older ones."""
    tree = RadixTree(PAGE, "lfu")
    for page in (1, 2):
        tree.insert(chain(page), ids(page))
    for page in (1, 1, 2):
        tree.match(chain(page))
    assert [e.device_pages.tolist() for e in tree.evict_device(2)] == [[2], [1]]


def test_lfu_forgets_hit_counts_that_no_node_has() -> None:
    """A page that is matched forever leaves no old counts behind."""
    tree = RadixTree(PAGE, "lfu")
    tree.insert(chain(1), ids(1))
    key = tree.encode(chain(1))
    for _ in range(500):
        tree.match(key)
    order = tree._at.device_order
    assert len(order._counts) < 50  # type: ignore[attr-defined]
    assert [e.device_pages.tolist() for e in tree.evict_device(1)] == [[1]]


def test_a_callback_may_take_a_victim_over(tree: RadixTree) -> None:
    """A victim locked for an asynchronous backup stays, and the next one is evicted."""
    first = tree.insert(chain(1), ids(1)).node
    tree.insert(chain(2), ids(2))

    def backup(node: Node) -> PageIds | None:
        if node is first:
            tree.lock(node)
        return None

    assert [e.device_pages.tolist() for e in tree.evict_device(1, backup)] == [[2]]
    tree.set_host(first, ids(10))
    tree.unlock(first)
    assert [e.removed for e in tree.evict_device(1)] == [False]
    tree.check()


def test_a_callback_may_remove_a_victim(tree: RadixTree) -> None:
    """A victim that the callback removed is not removed again; its pages do not count as evicted."""
    tree.insert(chain(1), ids(1))
    tree.insert(chain(2), ids(2))
    removed: list[list[int]] = []

    def backup(node: Node) -> PageIds | None:
        if not removed:
            removed.append(tree.remove(node).device_pages.tolist())
        return None

    assert [e.device_pages.tolist() for e in tree.evict_device(1, backup)] == [[2]]
    assert removed == [[1]]
    assert tree.stats.pages == 0
    tree.check()


def test_a_removed_node_takes_along_what_only_the_host_had_below_it(tree: RadixTree) -> None:
    """Host-only pages below it become unreachable, so their ids are returned too."""
    tree.insert(chain(1), ids(1))
    leaf = tree.insert(chain(1, 2), ids(1, 2)).node
    tree.set_host(leaf, ids(20))
    demoted, removed = tree.evict_device(2)
    assert not demoted.removed
    assert removed.removed
    assert removed.device_pages.tolist() == [1]
    assert removed.host_pages.tolist() == [20]
    assert tree.stats.pages == 0


def test_clear_refuses_while_something_is_held(tree: RadixTree) -> None:
    """A running request's pages are not freed."""
    node = tree.insert(chain(1), ids(1)).node
    tree.lock(node)
    with pytest.raises(RadixError, match="1 holds"):
        tree.clear()
    assert tree.match(chain(1)).pages == 1


def test_neither_a_split_nor_the_callers_array_is_kept_alive(tree: RadixTree) -> None:
    """Keeping 64 pages of a million must not retain the whole array."""
    huge = np.arange(100_000, dtype=np.int64)
    node = tree.insert(chain(*range(64)), huge[:64]).node
    assert node.device.base is None
    for length in range(1, 64):
        tree.match(chain(*range(length)))
    tree.check()
    retained = sum(
        (n.device if n.device.base is None else n.device.base).nbytes for n in tree.nodes()
    )
    assert retained <= 2 * 64 * 8


def test_results_cannot_write_into_the_tree(tree: RadixTree) -> None:
    """A caller that modifies a result gets an error and does not corrupt the tree."""
    tree.insert(chain(1, 2), ids(1, 2))
    with pytest.raises(ValueError, match="read-only"):
        tree.match(chain(1, 2)).device_pages[0] = 5


def test_check_finds_what_is_broken(tree: RadixTree) -> None:
    """The invariants are really checked."""
    node = tree.insert(chain(1, 2), ids(1, 2)).node
    node.holds = 1
    with pytest.raises(RadixError, match="holds add up"):
        tree.check()
    node.holds = 0
    node.device = ids(1, 1)
    with pytest.raises(RadixError, match="more than once"):
        tree.check()


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_a_request_takes_as_many_steps_in_a_large_tree(policy: Policy) -> None:
    """Match, insert and evict visit only the request's own nodes."""

    def steps(leaves: int) -> int:
        tree = RadixTree(PAGE, policy)
        for i in range(leaves):
            tree.insert(chain(0, i + 1), ids(leaves, i))
        counted = 0

        def count(*_: object) -> None:
            nonlocal counted
            counted += 1

        gc.disable()  # it calls back into whoever asked for that, at a time of its own
        sys.setprofile(count)
        try:
            tree.match(chain(0, leaves))
            tree.insert(chain(0, leaves + 1), ids(leaves, leaves + 1))
            tree.evict_device(1)
        finally:
            sys.setprofile(None)
            gc.enable()
        return counted

    assert steps(10) == steps(2_000)
