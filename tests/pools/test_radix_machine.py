"""The prefix tree against a naive model that knows every page by its whole prefix."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hicache_dbg.pools.radix import Eviction, Node, PageIds, Policy, RadixError, RadixTree

PAGE = 2
#: Ids of the two ends never meet, so that a mix-up shows.
FIRST_HOST_ID = 10_000

Page = tuple[int, ...]
Prefix = tuple[Page, ...]


def ids(*numbers: int) -> PageIds:
    """Return page ids."""
    return np.array(numbers, dtype=np.int64)


def tokens_of(prefix: Prefix) -> npt.NDArray[np.int64]:
    """Return the tokens of whole pages."""
    return np.array([token for page in prefix for token in page], dtype=np.int64)


class Ids:
    """A page allocator: lowest id first, and refuses an id that is returned twice."""

    def __init__(self, first: int) -> None:
        self.out: set[int] = set()
        self._first = first

    def take(self, count: int) -> PageIds:
        """Return ``count`` free ids."""
        free = (i for i in range(self._first, self._first + 10_000) if i not in self.out)
        taken = [next(free) for _ in range(count)]
        self.out.update(taken)
        return ids(*taken)

    def give_back(self, pages: PageIds) -> None:
        """Take ids back, each of which must be in use."""
        for page in pages.tolist():
            self.out.remove(page)


class Naive:
    """A model of the cache, page by page: whole prefixes in a dict, and a clock."""

    def __init__(self, policy: Policy) -> None:
        self.device: dict[Prefix, int] = {}
        self.host: dict[Prefix, int] = {}
        self.hits: dict[Prefix, int] = {}
        self.device_use: dict[Prefix, int] = {}
        self.host_use: dict[Prefix, int] = {}
        self.holds: list[Prefix] = []
        self._policy = policy
        self._clock = 0

    def known(self, prefix: Prefix) -> bool:
        """Return whether the last page of ``prefix`` is cached."""
        return prefix in self.device or prefix in self.host

    def longest(self, prefix: Prefix) -> Prefix:
        """Return the longest cached prefix of ``prefix``."""
        return max((p for p in starts(prefix) if self.known(p)), key=len, default=())

    def held(self, prefix: Prefix) -> bool:
        """Return whether a lock or pin is on the page or below it."""
        return any(hold[: len(prefix)] == prefix for hold in self.holds)

    def use(self, prefix: Prefix, *, device: bool = True) -> None:
        """Make the whole path the most recently used, on the host alone or at both ends."""
        self._clock += 1
        for p in starts(prefix):
            self.host_use[p] = self._clock
            if device:
                self.device_use[p] = self._clock

    def release(self, prefix: Prefix) -> None:
        """Release one hold; a page without any other hold counts as used."""
        self.holds.remove(prefix)
        self._clock += 1
        for p in starts(prefix):
            if not self.held(p):
                self.device_use[p] = self.host_use[p] = self._clock

    def forget(self, prefix: Prefix) -> None:
        """Drop the page and everything below it."""
        for p in [p for p in self.hits if p[: len(prefix)] == prefix]:
            self.device.pop(p, None)
            self.host.pop(p, None)
            del self.hits[p]

    def victim(self, end: dict[Prefix, int], use: dict[Prefix, int]) -> Prefix:
        """Return the last page of the run to evict next."""
        unheld = [p for p in end if not self.held(p)]
        frequency = self.hits if self._policy == "lfu" else dict.fromkeys(unheld, 0)
        return min(unheld, key=lambda p: (frequency[p], use[p], -len(p)))

    def evictable(self, end: dict[Prefix, int]) -> int:
        """Return how many pages of one end are not held."""
        return sum(not self.held(p) for p in end)


def starts(prefix: Prefix) -> list[Prefix]:
    """Return every prefix of ``prefix``, shortest first."""
    return [prefix[:n] for n in range(1, len(prefix) + 1)]


# Two kinds of pages only, so that most sequences share a start and end inside one another.
pages = st.sampled_from([(0, 0), (0, 1)])
prefixes = st.lists(pages, max_size=5).map(tuple)


class TreeBesideNaive(RuleBasedStateMachine):
    """Does everything in both and compares every page after every step."""

    policy: Policy = "lru"

    @initialize()
    def start(self) -> None:
        """Begin with two empty trees."""
        self.tree = RadixTree(PAGE, self.policy)
        self.naive = Naive(self.policy)
        self.device_ids = Ids(0)
        self.host_ids = Ids(FIRST_HOST_ID)
        self.locked: list[tuple[Node, Prefix, bool]] = []

    def matched(self, prefix: Prefix) -> tuple[Node, Prefix]:
        """Match in both trees; later steps use the result."""
        node = self.tree.match(tokens_of(prefix)).node
        known = self.naive.longest(prefix)
        for p in starts(known):
            self.naive.hits[p] += 1
        self.naive.use(known)
        return node, known

    @rule(prefix=prefixes, ragged=st.integers(0, PAGE - 1))
    def match(self, prefix: Prefix, ragged: int) -> None:
        """The longest prefix of whole pages is found, with the tier of each page."""
        tokens = np.concatenate([tokens_of(prefix), np.zeros(ragged, dtype=np.int64)])
        result = self.tree.match(tokens)
        known = self.naive.longest(prefix)
        on_device = [self.naive.device[p] for p in starts(known) if p in self.naive.device]
        below = [self.naive.host[p] for p in starts(known)[len(on_device) :]]
        assert result.pages == len(known)
        assert result.device_pages.tolist() == on_device
        assert result.host_pages.tolist() == below
        assert self.tree.tokens(result.node).tolist() == tokens_of(known).tolist()
        for p in starts(known):
            self.naive.hits[p] += 1
        self.naive.use(known)

    @rule(prefix=prefixes, own_ids=st.integers(0, 5))
    def insert(self, prefix: Prefix, own_ids: int) -> None:
        """The caller passes the tree's own ids for part of its match, new ones for the rest."""
        kept = [self.naive.device[p] for p in starts(prefix) if p in self.naive.device]
        kept = kept[:own_ids]
        fresh = self.device_ids.take(len(prefix) - len(kept))
        known = self.naive.longest(prefix)
        result = self.tree.insert(tokens_of(prefix), np.concatenate([ids(*kept), fresh]))
        assert result.new_pages == len(prefix) - len(known)
        assert self.tree.tokens(result.node).tolist() == tokens_of(prefix).tolist()
        refused = []
        for p, page in zip(starts(prefix), kept + fresh.tolist(), strict=True):
            if self.naive.device.setdefault(p, page) != page:
                refused.append(page)
            self.naive.hits.setdefault(p, 0)
        assert result.duplicate_device_pages.tolist() == refused
        self.device_ids.give_back(result.duplicate_device_pages)
        self.naive.use(prefix)

    @rule(prefix=prefixes, nodes=st.integers(1, 4))
    def set_host(self, prefix: Prefix, nodes: int) -> None:
        """Some nodes at the end of a path get host copies, even if they have one already."""
        node, known = self.matched(prefix)
        count = sum(n.pages for n in list(node.path())[:nodes])
        fresh = self.host_ids.take(count)
        refused = self.tree.set_host(node, fresh)
        expected = [
            page
            for p, page in zip(starts(known)[len(known) - count :], fresh.tolist(), strict=True)
            if self.naive.host.setdefault(p, page) != page
        ]
        assert refused.tolist() == expected
        self.host_ids.give_back(refused)
        self.naive.use(known, device=False)

    @rule(prefix=prefixes)
    def load_back(self, prefix: Prefix) -> None:
        """Host-only pages of a match come to the device."""
        node, known = self.matched(prefix)
        below = [p for p in starts(known) if p not in self.naive.device]
        fresh = self.device_ids.take(len(below))
        assert self.tree.set_device(node, fresh).size == 0
        self.naive.device.update(zip(below, fresh.tolist(), strict=True))
        self.naive.use(known)

    @rule(prefix=prefixes, pin=st.booleans())
    def lock(self, prefix: Prefix, pin: bool) -> None:
        """A matched path is locked or pinned."""
        node, known = self.matched(prefix)
        (self.tree.pin if pin else self.tree.lock)(node)
        self.naive.holds.append(known)
        self.locked.append((node, known, pin))

    @precondition(lambda self: self.locked)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        """A handle releases its hold, whatever was split since."""
        node, known, pin = self.locked.pop(data.draw(st.integers(0, len(self.locked) - 1)))
        (self.tree.unpin if pin else self.tree.unlock)(node)
        self.naive.release(known)

    @rule(wanted=st.integers(0, 3))
    def evict_device(self, wanted: int) -> None:
        """Victims leave the device in the policy's order."""
        evictable = self.naive.evictable(self.naive.device)
        evictions = self.tree.evict_device(wanted)
        for e in evictions:
            self.drop_one_device(e)
        self.enough(wanted, evictable, [e.device_pages.size for e in evictions])

    @rule(wanted=st.integers(0, 3), keeps=st.lists(st.booleans(), min_size=8, max_size=8))
    def evict_device_write_back(self, wanted: int, keeps: list[bool]) -> None:
        """Some victims are backed up first, the others are dropped."""
        decisions = iter(keeps)
        backed_up: dict[Node, list[int]] = {}

        def backup(node: Node) -> PageIds | None:
            assert node.on_device
            assert not node.on_host
            if not next(decisions, False):
                return None
            fresh = self.host_ids.take(node.pages)
            backed_up[node] = fresh.tolist()
            return fresh

        evictable = self.naive.evictable(self.naive.device)
        evictions = self.tree.evict_device(wanted, backup)
        for e in evictions:
            if e.node in backed_up:
                last = self.naive.victim(self.naive.device, self.naive.device_use)
                run = starts(last)[-e.device_pages.size :]
                self.naive.host.update(zip(run, backed_up[e.node], strict=True))
                self.naive.use(last, device=False)
            self.drop_one_device(e)
        self.enough(wanted, evictable, [e.device_pages.size for e in evictions])

    def drop_one_device(self, e: Eviction) -> None:
        """Check one victim against the naive order, and drop it there too."""
        naive = self.naive
        last = naive.victim(naive.device, naive.device_use)
        run = starts(last)[len(last) - e.device_pages.size :]
        assert e.device_pages.tolist() == [naive.device[p] for p in run]
        assert e.removed == (last not in naive.host)
        below = {i for p, i in naive.host.items() if p[: len(last)] == last} if e.removed else set()
        assert set(e.host_pages.tolist()) == below
        if e.removed:
            naive.forget(run[0])
        else:
            for p in run:
                del naive.device[p]
        self.device_ids.give_back(e.device_pages)
        self.host_ids.give_back(e.host_pages)

    def enough(self, wanted: int, evictable: int, sizes: list[int]) -> None:
        """Check that as much as requested, or all there was, was evicted, and no node more."""
        assert sum(sizes) >= min(wanted, evictable)
        assert sum(sizes[:-1]) < max(wanted, 1)

    @rule(wanted=st.integers(0, 3))
    def evict_host(self, wanted: int) -> None:
        """Victims leave the host in the policy's order."""
        naive = self.naive
        evictable = naive.evictable(naive.host)
        evictions = self.tree.evict_host(wanted)
        for e in evictions:
            last = naive.victim(naive.host, naive.host_use)
            run = starts(last)[len(last) - e.host_pages.size :]
            assert e.host_pages.tolist() == [naive.host[p] for p in run]
            assert e.device_pages.size == 0
            assert e.removed == (last not in naive.device)
            for p in run:
                del naive.host[p]
            if e.removed:
                naive.forget(run[0])
            self.host_ids.give_back(e.host_pages)
        self.enough(wanted, evictable, [e.host_pages.size for e in evictions])

    @rule(prefix=prefixes)
    def remove(self, prefix: Prefix) -> None:
        """A subtree is removed as a whole, unless something in it is held."""
        node, known = self.matched(prefix)
        if not known or self.naive.held(known):
            with pytest.raises(RadixError, match="no holds"):
                self.tree.remove(node)
            return
        first = known[: len(known) - node.pages + 1]
        gone = [p for p in self.naive.hits if p[: len(first)] == first]
        e = self.tree.remove(node)
        assert set(e.device_pages.tolist()) == {
            self.naive.device[p] for p in gone if p in self.naive.device
        }
        assert set(e.host_pages.tolist()) == {
            self.naive.host[p] for p in gone if p in self.naive.host
        }
        self.naive.forget(first)
        self.device_ids.give_back(e.device_pages)
        self.host_ids.give_back(e.host_pages)

    @precondition(lambda self: not self.locked)
    @rule()
    def clear(self) -> None:
        """Every id is returned."""
        for e in self.tree.clear():
            self.device_ids.give_back(e.device_pages)
            self.host_ids.give_back(e.host_pages)
        self.naive.forget(())
        assert not self.device_ids.out
        assert not self.host_ids.out

    @invariant()
    def same_pages(self) -> None:
        """The tree is consistent, holds what the naive one holds, and loses no id."""
        self.tree.check()
        device: dict[Prefix, int] = {}
        host: dict[Prefix, int] = {}
        for node in self.tree.nodes():
            flat = self.tree.tokens(node).reshape(-1, PAGE).tolist()
            run = starts(tuple(map(tuple, flat)))[len(flat) - node.pages :]
            assert all(self.naive.hits[p] == node.hits for p in run)
            device.update(zip(run, node.device.tolist(), strict=False))
            host.update(zip(run, node.host.tolist(), strict=False))
        assert device == self.naive.device
        assert host == self.naive.host
        assert set(device.values()) == self.device_ids.out
        assert set(host.values()) == self.host_ids.out
        assert self.tree.stats.evictable_device == self.naive.evictable(device)
        assert self.tree.stats.evictable_host == self.naive.evictable(host)


class LfuTreeBesideNaive(TreeBesideNaive):
    """The same with the other policy."""

    policy: Policy = "lfu"


limits = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestLru = TreeBesideNaive.TestCase
TestLru.settings = limits
TestLfu = LfuTreeBesideNaive.TestCase
TestLfu.settings = limits
