"""Every invariant of the prefix tree is really checked: each one broken alone is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

from hicache_dbg.pools.radix import Node, PageIds, Policy, RadixError, RadixTree
from hicache_dbg.pools.radix_check import violations
from hicache_dbg.pools.radix_node import NO_PAGES, cut_ids, tail_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

PAGE = 2
PAGE_BYTES = 4 * PAGE


def ids(*numbers: int) -> PageIds:
    """Return page ids."""
    return np.array(numbers, dtype=np.int64)


def chain(*numbers: int) -> npt.NDArray[np.int64]:
    """Return one page of tokens a number."""
    return np.repeat(np.array(numbers, dtype=np.int64), PAGE)


class Sound(NamedTuple):
    """A tree in which all holds, and its nodes.

    ``top`` has both copies; below it, ``left`` lies on the device and ``right`` on the host; ``held``
    stands alone, has both copies and is locked.
    """

    tree: RadixTree
    top: Node
    left: Node
    right: Node
    held: Node


@pytest.fixture(params=["lru", "lfu"])
def sound(request: pytest.FixtureRequest) -> Sound:
    """Return a tree without a fault, under either policy."""
    policy: Policy = request.param
    tree = RadixTree(PAGE, policy)
    top = tree.insert(chain(1, 2), ids(1, 2)).node
    tree.set_host(top, ids(11, 12))
    left = tree.insert(chain(1, 2, 3, 4), ids(1, 2, 3, 4)).node
    tree.insert_host(chain(1, 2, 5), ids(15))
    right, _ = tree.find(chain(1, 2, 5))
    held = tree.insert(chain(9), ids(9)).node
    tree.set_host(held, ids(19))
    tree.lock(held)
    tree.match(chain(1, 2, 3, 4))
    tree.check()
    return Sound(tree, top, left, right, held)


def broken(sound: Sound) -> list[str]:
    """Return what does not hold; :meth:`RadixTree.check` raises exactly if that is anything."""
    found = violations(sound.tree._at, PAGE_BYTES)
    assert found
    with pytest.raises(RadixError, match=f"{len(found)} invariants broken") as caught:
        sound.tree.check()
    assert found[0] in str(caught.value)
    return found


def with_attributes(node: Node, **values: object) -> None:
    """Set attributes that only the tree may set."""
    for name, value in values.items():
        setattr(node, name, value)


NODE_RULES: list[tuple[str, Callable[[Sound], None]]] = [
    ("its edge has its pages", lambda s: with_attributes(s.left, pages=3)),
    ("its edge has its pages", lambda s: with_attributes(s.left, pages=0, edge=memoryview(b""))),
    ("its first page is its key", lambda s: with_attributes(s.left, first=s.right.first)),
    ("its parent has it", lambda s: with_attributes(s.left, parent=s.tree.root)),
    ("its parent has it", lambda s: with_attributes(s.left, parent=None)),
    ("it is whole on the device", lambda s: with_attributes(s.left, device=ids(3))),
    ("it is whole on the host", lambda s: with_attributes(s.top, host=ids(11))),
    ("it lies somewhere", lambda s: with_attributes(s.right, host=NO_PAGES)),
    (
        "a device node's parent is on the device",
        lambda s: with_attributes(s.top, device=NO_PAGES),
    ),
    ("its holds add up", lambda s: with_attributes(s.left, holds=1)),
    ("its holds add up", lambda s: with_attributes(s.held, holds=0)),
    ("its holds add up", lambda s: with_attributes(s.held, locks=2)),
    ("its holds add up", lambda s: with_attributes(s.held, pins=1)),
    ("locks and pins are not negative", lambda s: with_attributes(s.held, locks=-1, pins=2)),
    ("locks and pins are not negative", lambda s: with_attributes(s.held, locks=2, pins=-1)),
    ("it has no more hits than its parent", lambda s: with_attributes(s.right, hits=2)),
    (
        "its ids retain at most twice their size",
        lambda s: with_attributes(s.left, device=ids(0, 0, 0, 3, 4)[3:]),
    ),
    (
        "its ids retain at most twice their size",
        lambda s: with_attributes(s.right, host=ids(0, 0, 15)[2:]),
    ),
    (
        "its edge retains at most twice its size",
        lambda s: with_attributes(s.left, edge=memoryview(bytes(17) + bytes(s.left.edge))[17:]),
    ),
]


@pytest.mark.parametrize(("rule", "break_it"), NODE_RULES)
def test_a_node_that_breaks_a_rule_is_named_with_it(
    sound: Sound, rule: str, break_it: Callable[[Sound], None]
) -> None:
    """Whatever else follows from it, the broken rule itself is told."""
    break_it(sound)
    assert any(text.endswith(f": not so that {rule}") for text in broken(sound))


def test_a_rule_is_told_of_the_node_that_breaks_it_only(sound: Sound) -> None:
    """Its neighbours are not accused."""
    sound.right.hits = 2
    assert broken(sound) == [f"{sound.right!r}: not so that it has no more hits than its parent"]


def test_twice_its_size_is_what_a_cut_may_retain(sound: Sound) -> None:
    """What the tree keeps as a view after a cut passes, to the byte."""
    _, rest = cut_ids(ids(0, 0, 3, 4), 2)
    assert rest.base is not None
    sound.left.device = rest
    sound.left.edge = tail_bytes(memoryview(bytes(16) + bytes(sound.left.edge)), 16)
    assert memoryview(sound.left.edge.obj).nbytes == 2 * len(sound.left.edge)
    sound.tree.check()


def test_the_roots_holds_are_counted_too(sound: Sound) -> None:
    """A hold that was lost at the root would let the tree be cleared under a request."""
    sound.tree.root.holds = 0
    assert broken(sound) == ["root has 0 holds, its locks, pins and children 1"]


@pytest.mark.parametrize("fault", ["missing", "held", "of the other tier"])
@pytest.mark.parametrize("tier", ["device", "host"])
def test_an_order_holds_the_unheld_nodes_of_its_tier_and_no_other(
    sound: Sound, tier: str, fault: str
) -> None:
    """A node that is missing is never evicted; one too many is evicted while it is held."""
    order = getattr(sound.tree._at, f"{tier}_order")
    own, other = sound.left, sound.right
    if tier == "host":
        own, other = other, own
    if fault == "missing":
        order.remove(own)
    else:
        order.add(sound.held if fault == "held" else other)
    text = f"the {tier} order does not hold exactly the unheld nodes of the {tier}"
    assert text in broken(sound)


@pytest.mark.parametrize("tier", ["device", "host"])
def test_a_parent_before_its_child_is_out_of_order(sound: Sound, tier: str) -> None:
    """It would be evicted as if it were a leaf."""
    order = getattr(sound.tree._at, f"{tier}_order")
    child = {"device": sound.left, "host": sound.right}[tier]
    order.remove(child)
    child.hits = sound.top.hits
    order.add(child)
    assert broken(sound) == [f"{sound.top!r} stands before its child in the {tier} order"]


def test_a_page_id_that_is_in_the_tree_twice_is_told_with_its_tier(sound: Sound) -> None:
    """Two nodes on one page would free it twice; the tiers number their pages apart."""
    sound.top.device = ids(1, 3)
    assert broken(sound) == ["1 device page ids are in the tree more than once"]
    sound.top.device = ids(1, 2)
    sound.top.host = ids(11, 15)
    assert broken(sound) == ["1 host page ids are in the tree more than once"]
    sound.top.host = ids(1, 2)
    sound.tree.check()


@pytest.mark.parametrize(
    ("counter", "name", "counted"),
    [
        ("_nodes", "nodes", 4),
        ("_pages", "pages", 6),
        ("_device_pages", "device_pages", 5),
        ("_host_pages", "host_pages", 4),
    ],
)
def test_each_statistic_is_counted_again(
    sound: Sound, counter: str, name: str, counted: int
) -> None:
    """A counter that drifted by one is told with both values."""
    at = sound.tree._at
    setattr(at, counter, getattr(at, counter) + 1)
    assert broken(sound) == [f"stats say {name} {counted + 1}, counted {counted}"]


@pytest.mark.parametrize(("tier", "counted"), [("device", 4), ("host", 3)])
def test_what_can_be_evicted_is_counted_again(sound: Sound, tier: str, counted: int) -> None:
    """Pages of held nodes are not among them."""
    getattr(sound.tree._at, f"{tier}_order").pages += 1
    assert broken(sound) == [f"stats say evictable_{tier} {counted + 1}, counted {counted}"]


def test_a_message_names_the_first_three_and_says_how_many_there_are(sound: Sound) -> None:
    """A broken tree of a million nodes is one line."""
    for counter in ("_nodes", "_pages", "_device_pages", "_host_pages"):
        setattr(sound.tree._at, counter, 0)
    found = violations(sound.tree._at, PAGE_BYTES)
    with pytest.raises(RadixError) as caught:
        sound.tree.check()
    assert str(caught.value) == f"4 invariants broken: {'; '.join(found[:3])}"
