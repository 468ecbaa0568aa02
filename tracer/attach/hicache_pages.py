"""Notes on the engine's allocators and on the locks and pins of its prefix tree."""

import threading
from collections.abc import Callable, Iterator
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.radix import RadixTree
from hicache_dbg.pools.radix_node import Node
from hicache_dbg.tracer.attach.call_site import access
from hicache_dbg.tracer.attach.hicache_books import Books
from hicache_dbg.tracer.attach.notes import Notes
from hicache_dbg.tracer.checks.ordering_clocks import ActorId
from hicache_dbg.tracer.checks.ownership import Ownership, Pages
from hicache_dbg.tracer.checks.pins import Handle
from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.forks import after_fork

__all__ = ["PageNotes", "Together", "Wrappers"]

#: A class, the name of a method, and the function that builds its replacement.
Wrappers = Iterator[tuple[type, str, Callable[[Any], Any]]]


class Together:
    """Collects holds that an operation takes or releases as one, to be part of its note.

    Holds that nobody claimed by the end of the block become notes of their own.
    """

    def __init__(self, pages: "PageNotes") -> None:
        self._pages = pages
        self._calls: list[tuple[PageAllocator, str, npt.ArrayLike]] = []

    def add(self, allocator: PageAllocator, name: str, page_ids: npt.ArrayLike) -> None:
        """Collect an acquire or release of pages of ``allocator``."""
        self._calls.append((allocator, name, page_ids))

    def claim(self, *allocators: PageAllocator) -> bool:
        """Claim the holds if they are exactly one per allocator, in this order.

        Return whether so.
        """
        if [call[0] for call in self._calls] != list(allocators):
            return False
        self._calls.clear()
        return True

    def __enter__(self) -> Self:
        self._pages.here.together = self
        return self

    def __exit__(self, *_: object) -> None:
        self._pages.here.together = None
        for call in self._calls:
            self._pages.take(*call)


class PageNotes:
    """Notes which pages were allocated, freed, held and released."""

    def __init__(self, notes: Notes, books: Callable[[], Books]) -> None:
        self._notes = notes
        self._books = books
        self.here = notes.here
        self._unlock()
        after_fork(self._unlock)  # a lock may be held by a thread that the child lacks
        self._pools: WeakKeyDictionary[PageAllocator, str] = WeakKeyDictionary()

    def _unlock(self) -> None:
        # One lock per allocator keeps its notes in the order of its calls. A single lock for all
        # would make caches wait for each other.
        self._locks: WeakKeyDictionary[PageAllocator, threading.RLock] = WeakKeyDictionary()

    def wrappers(self) -> Wrappers:
        """Yield the methods to replace."""
        yield PageAllocator, "alloc", self._around_alloc
        yield PageAllocator, "free", self._around("free")
        yield PageAllocator, "acquire", self._around("acquire")
        yield PageAllocator, "release", self._around("release")
        yield RadixTree, "lock", self._around_pin("lock")
        yield RadixTree, "pin", self._around_pin("pin")
        yield RadixTree, "unlock", self._around_unpin("unlock")
        yield RadixTree, "unpin", self._around_unpin("unpin")

    def holding(self) -> Together:
        """Return a block in which this thread's holds belong to one operation."""
        return Together(self)

    def name(self, allocator: PageAllocator, pool: str) -> None:
        """Attribute findings on this allocator's pages to ``pool``."""
        self._pools[allocator] = pool

    def _in_turn(self, allocator: PageAllocator) -> threading.RLock:
        """Return the lock held while an allocator is called.

        Reentrant, because signals may call it too.
        """
        lock = self._locks.get(allocator)
        return self._locks.setdefault(allocator, threading.RLock()) if lock is None else lock

    def _around_alloc(self, original: Callable[..., Pages]) -> Callable[..., Pages]:
        def alloc(allocator: PageAllocator, count: int, owner: int = 0) -> Pages:
            with self._in_turn(allocator):
                pages = original(allocator, count, owner)
                with self._notes.at("lifetimes/alloc"):
                    given, by, left = pages.copy(), access("alloc"), allocator.available
                    generations = allocator.generation(given).astype(np.int64)

                    def turn(book: Ownership) -> list[Violation]:
                        found = book.alloc(given, generations, owner, by)
                        return found + book.balance(left, -len(given), by)

                    self._note(allocator, turn, by, given)
            return pages

        return alloc

    def _around(self, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
        place, held = f"lifetimes/{name}", name != "free"

        def make(original: Callable[..., None]) -> Callable[..., None]:
            def call(allocator: PageAllocator, page_ids: npt.ArrayLike) -> None:
                with self._in_turn(allocator):
                    refused = True
                    try:
                        original(allocator, page_ids)
                        refused = False
                    finally:
                        with self._notes.at(place):
                            together = self.here.together
                            if together is not None and held and not refused:
                                together.add(allocator, name, page_ids)
                            else:
                                self.moved(allocator, name, page_ids, refused=refused)

            call.__name__ = name
            return call

        return make

    def take(self, allocator: PageAllocator, name: str, page_ids: npt.ArrayLike) -> None:
        """Note a hold that belongs to no operation."""
        with self._notes.at(f"lifetimes/{name}"):
            self.moved(allocator, name, page_ids, refused=False)

    def moved(
        self, allocator: PageAllocator, name: str, page_ids: npt.ArrayLike, *, refused: bool
    ) -> None:
        """Note that pages were freed, acquired or released, or that the allocator refused to."""
        # Copy: the caller may reuse its array.
        pages = np.array(page_ids, np.int64).reshape(-1)
        pages = pages[(pages >= 0) & (pages < allocator.pages)]
        by, left = access(name), allocator.available

        def turn(book: Ownership) -> list[Violation]:
            if name == "acquire":
                return book.acquire(pages, by, refused=refused)
            if name == "release":
                return book.release(pages, by, refused=refused)
            moved = 0 if refused else len(pages)
            return book.free(pages, by, refused=refused) + book.balance(left, moved, by)

        self._note(allocator, turn, by, pages)

    def _note(
        self,
        allocator: PageAllocator,
        turn: Callable[[Ownership], list[Violation]],
        by: Access,
        pages: Pages,
    ) -> None:
        actor = ActorId(threading.get_ident()) if self._notes.ordered else None

        def judged() -> list[Violation]:
            books = self._books()
            books.order.met(actor, allocator)
            return turn(books.tier(allocator).pages)

        pool = self._pools.get(allocator, allocator.name)
        self._notes.take(judged, pool, by=by, about=(allocator.name, pages))

    def _around_pin(self, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
        def make(original: Callable[..., None]) -> Callable[..., None]:
            def pin(tree: RadixTree, node: Node) -> None:
                original(tree, node)
                with self._notes.at("lifetimes/pin"):
                    by, handle, held = access(name), _handle(node, name), _held(node, name)
                    self._notes.take(lambda: self._books().pins.pin(handle, by, held), by=by)

            pin.__name__ = name
            return pin

        return make

    def _around_unpin(self, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
        def make(original: Callable[..., None]) -> Callable[..., None]:
            def unpin(tree: RadixTree, node: Node) -> None:
                refused = True
                try:
                    original(tree, node)
                    refused = False
                finally:
                    with self._notes.at("lifetimes/unpin"):
                        self._unpinned(node, name, access(name), refused=refused)

            unpin.__name__ = name
            return unpin

        return make

    def _unpinned(self, node: Node, name: str, by: Access, *, refused: bool) -> None:
        handle, left = _handle(node, name), _held(node, name)

        def turn() -> list[Violation]:
            pins = self._books().pins
            found = pins.unpin(handle, by, refused=refused)
            if not left and not refused:
                pins.forget(handle)  # the node may die now, and its id be reused
            return found

        self._notes.take(turn, "prefix_tree", by=by)


def _held(node: Node, name: str) -> int:
    """Return how many locks, or pins, a node has."""
    return node.pins if name.endswith("pin") else node.locks


def _handle(node: Node, name: str) -> Handle:
    """Return distinct handles for the locks and the pins of a node."""
    return Handle(2 * id(node) + name.endswith("pin"))
