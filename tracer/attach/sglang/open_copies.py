"""Copies that have pages open: from their submission to the event that says that they are over."""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hicache_dbg.tracer.attach.call_site import access
from hicache_dbg.tracer.attach.sglang.registry import Allocations, Registry
from hicache_dbg.tracer.attach.sglang.say import Say
from hicache_dbg.tracer.checks.ownership import Ownership
from hicache_dbg.tracer.checks.ownership_rules import CLASH
from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.events import Op, Tier
from hicache_dbg.tracer.ledger import Pages
from hicache_dbg.tracer.mirror import Copy
from hicache_dbg.tracer.view import View

__all__ = ["Followed", "OpenCopies", "OpenCopy", "within"]

_HOST, _DEVICE = Tier.HOST.value, Tier.DEVICE.value

#: Lets somebody look at what just happened, in its turn, for a pool and an operation.
Note = Callable[[Callable[[], list[Violation]], str, str], None]


@dataclass(slots=True, eq=False)  # not frozen: each copy has some, and those take a third as long
class _End:
    """Pages that a copy has open: of an allocator, or with ``moves`` those whose bytes it moves.

    Pools that ride on each other's indices have one allocator and bytes of their own each: what one
    writes no other pool's copy disturbs.
    """

    source: Allocations
    tier: str
    pages: Pages
    limit: int
    writes: bool = False
    moves: bool = False


class Followed(Protocol):
    """A copy of which it is known later which pages it moves: then it is ``opened``.

    ``stream``: those of one are over one after another. ``before`` are copies that were over when this
    one was submitted, and still have their pages open.
    """

    stream: int
    before: "Sequence[Followed | OpenCopy]"
    opened: "OpenCopy | None"

    @property
    def whose(self) -> tuple[str, str]:
        """The pool's name and the operation's kind."""
        ...

    def query(self) -> bool:
        """Whether it is over."""
        ...


@dataclass(slots=True, eq=False)
class OpenCopy:
    """A copy's pages between its submission and the event that says it is over: ``over``."""

    pool: str
    op: str
    by: Access
    ends: Sequence[_End] = ()
    over: Any = None
    #: None of ours: it is over when it is.
    stream: int = 0

    @property
    def whose(self) -> tuple[str, str]:
        """The pool's name and the operation's kind."""
        return self.pool, self.op

    def query(self) -> bool:
        """Whether it is over."""
        return bool(self.over.query())


class OpenCopies:
    """Opens and closes the pages of copies in the books of those who gave them away.

    Args:
        registry: knows the host pools.
        say: where findings go.
        note: hands a turn to the bus.
        book: who has which pages of an allocator, by it and the tier.
        allocator: the allocator of a device pool, if one was seen.
    """

    def __init__(
        self,
        registry: Registry,
        say: Say,
        note: Note,
        book: Callable[[Allocations, str], Ownership],
        allocator: Callable[[Any], Any],
    ) -> None:
        self._registry = registry
        self._say = say
        self._note = note
        self._of_allocator = book
        self._allocator = allocator
        #: By their stream: of each only the first is asked whether it is over.
        self._open: dict[int, deque[Followed | OpenCopy]] = {}
        self._lock = threading.Lock()  # threads for storage free host pages too
        self._moved: weakref.WeakKeyDictionary[Allocations, dict[str, Ownership]] = (
            weakref.WeakKeyDictionary()
        )

    def opened(self, copy: Copy, device_pool: Any) -> OpenCopy:
        """A copy was submitted: both ends are open until its event."""
        self.settle()
        name, op = copy.mirror.pool, copy.op.value
        by = access(f"{op} {copy.op_id}")
        opened = OpenCopy(name, op, by, self._ends(copy, device_pool))
        self._note(lambda: self._enter(opened), name, op)
        return opened

    def opening(self, copy: Followed) -> None:
        """A copy was submitted whose pages are on a GPU: :meth:`known` tells them, in its turn."""
        with self._lock:
            for copies in self._open.values():
                if copies[0].query():
                    copy.before = self._that_are_over()
                    break
            others = self._open.get(copy.stream)
            if others is None:
                self._open[copy.stream] = deque((copy,))
            else:
                others.append(copy)

    def lost(self, copy: Followed) -> None:
        """Nobody will ask for :meth:`known`."""
        # One that is lost keeps no other, nor that one's memory on the device.
        before, copy.before = copy.before, ()
        for earlier in before:
            self._close(earlier)

    def known(self, one: Followed, copy: Copy, device_pool: Any, thread: str) -> None:
        """On the bus's thread, as the copy's record comes: its pages have been open since then."""
        for earlier in one.before:
            self._closed(earlier)
        one.before = ()
        pool, op = one.whose
        ends, by = self._ends(copy, device_pool), Access(f"{op} {copy.op_id}", thread)
        one.opened = opened = OpenCopy(pool, op, by, ends)
        found = self._enter(opened)
        if found:
            self._say.found(found, pool, op)

    def submitted(self, copies: list[OpenCopy], over: Any) -> None:
        """The operation that these copies belong to ends with the event ``over``; None: it ended."""
        for copy in copies:
            copy.over = copy.over if over is None else over
            if copy.over is None:
                self._close(copy)
            else:
                with self._lock:
                    self._open.setdefault(copy.stream, deque()).append(copy)

    def settle(self) -> None:
        """Close the copies whose event has come."""
        if self._open:
            with self._lock:
                over = self._that_are_over()
            for copy in over:
                self._close(copy)

    def _that_are_over(self) -> "list[Followed | OpenCopy]":
        over: list[Followed | OpenCopy] = []
        for stream, copies in list(self._open.items()):
            if stream:
                while copies and copies[0].query():
                    over.append(copies.popleft())
            else:  # each for itself
                for _ in range(len(copies)):
                    copy = copies.popleft()
                    (over if copy.query() else copies).append(copy)
            if not copies:
                del self._open[stream]
        return over

    def _close(self, copy: Followed | OpenCopy) -> None:
        def turn() -> list[Violation]:
            self._closed(copy)
            return []

        self._note(turn, *copy.whose)

    def _closed(self, copy: Followed | OpenCopy) -> None:
        opened = copy if isinstance(copy, OpenCopy) else copy.opened
        if opened is not None:
            for end in opened.ends:
                self._book_of(end).close(end.pages, opened.by, writes=end.writes)

    def _enter(self, copy: OpenCopy) -> list[Violation]:
        return [
            item
            for end in copy.ends
            for item in self._book_of(end).open(end.pages, copy.by, writes=end.writes)
            # One operation may move a page in several calls, of other layers each.
            if item.words != CLASH.words
            or item.previous is None
            or item.previous.what != copy.by.what
        ]

    def _ends(self, copy: Copy, device_pool: Any) -> list[_End]:
        mirror, writes = copy.mirror, copy.op is not Op.LOAD
        record = self._registry.by_mirror(mirror)
        own, ends = record.sources[0], list[_End]()
        counts_alike = not (record.geometry and record.geometry.lives)
        if counts_alike:  # as its allocator does
            for source in record.sources:
                pages = _at_host(copy, source.pages)
                ends.append(_End(source, _HOST, pages, source.pages))
        allocator = self._allocator(device_pool)
        if allocator is not None:
            source = self._registry.allocations(allocator)
            pages = _at_device(copy, source.pages)
            ends.append(_End(source, _DEVICE, pages, source.pages))
        if counts_alike:
            pages = _at_host(copy, own.pages)
            ends.append(_End(own, _HOST, pages, own.pages, writes, moves=True))
        limit = _pages_of(mirror.device)
        pages = _at_device(copy, limit)
        ends.append(_End(own, _DEVICE, pages, limit, not writes, moves=True))
        return ends

    def _book_of(self, end: _End) -> Ownership:
        if not end.moves:
            return self._of_allocator(end.source, end.tier)
        books = self._moved.setdefault(end.source, {})
        if end.tier not in books:
            books[end.tier] = Ownership(end.tier, end.limit)
        return books[end.tier]

    def forget(self, source: Allocations | None = None) -> None:
        """On the bus's thread: every page of ``source``, or of all, is as if never seen."""
        if source is None:
            self._moved.clear()
        else:
            self._moved.pop(source, None)


def _pages_of(end: Mapping[str, View]) -> int:
    return max([view.pages for view in end.values()], default=0)


def _at_host(copy: Copy, limit: int) -> Pages:
    sure = copy.fits and len(copy.mirror.writes) <= limit
    return copy.host_pages if sure else within(copy.host_pages, limit)


def _at_device(copy: Copy, limit: int) -> Pages:
    sure = copy.fits and copy.mirror.device_pages <= limit
    return copy.device_pages if sure else within(copy.device_pages, limit)


def within(pages: Pages, limit: int) -> Pages:
    """Those that there are; what lies outside is another check's business."""
    there: Pages = pages[(pages >= 0) & (pages < limit)]
    return there
