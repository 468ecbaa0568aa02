"""Copies that have pages open, from their submission to the event that says they are over."""

import threading
import time
import weakref
from collections import defaultdict, deque
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

#: Copies that are over and still open at most: beyond, the oldest are closed before their turn.
_MOST_ENTERED = 32

#: Lets somebody look at what just happened, in its turn, for a pool and an operation.
Note = Callable[[Callable[[], list[Violation]], str, str], None]


@dataclass(slots=True, eq=False)  # not frozen: each copy has some, and those take a third as long
class _End:
    """Pages that a copy has open: of an allocator, or with ``moves`` those whose bytes it moves.

    Pools that share their indices have one allocator, but each its own bytes: a write to one does
    not disturb a copy of another.
    """

    source: Allocations
    tier: str
    pages: Pages
    limit: int
    writes: bool = False
    moves: bool = False


class Followed(Protocol):
    """A copy whose pages are known only after it is over: then it is ``opened``.

    Attributes:
        stream: Copies of one stream are over one after another.
        over_ns: When the bus saw that it was over; 0 before that.
        opened: Its pages; None before the bus knows them.
    """

    stream: int
    over_ns: int
    opened: "OpenCopy | None"

    @property
    def time_ns(self) -> int:
        """When it had been submitted."""
        ...

    @property
    def whose(self) -> tuple[str, str]:
        """The pool's name and the operation's kind."""
        ...

    def query(self) -> bool:
        """Return whether it is over."""
        ...

    def over_before(self, other: Any) -> bool:
        """Return whether it was over when another one began, as far as anyone knows."""
        ...

    def closed(self) -> None:
        """Its pages are closed: let go of whatever tells when it was over."""
        ...


@dataclass(slots=True, eq=False)
class OpenCopy:
    """A copy's pages, between its submission and the event that says it is over (``over``)."""

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
        """Return whether it is over."""
        return bool(self.over.query())


class OpenCopies:
    """Opens and closes the pages of copies in the books of those who gave them away.

    Copies whose pages are on a GPU are appended to :attr:`under_way` by SGLang's thread and become
    :meth:`known` on the bus's. Both threads may find that one is over; it is closed once.

    Args:
        registry: Knows the host pools.
        say: Takes findings.
        note: Hands a turn to the bus.
        book: Returns who has which pages of an allocator, by it and the tier.
        allocator: Returns the allocator of a device pool, if one was seen.
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
        self._open: defaultdict[int, deque[Followed | OpenCopy]] = defaultdict(deque)
        self._lock = threading.Lock()  # threads for storage free host pages too
        #: Copies that the bus has seen to be over and whose pages are still open.
        self._entered: list[Followed] = []
        #: When pages were given away or taken back for the last time.
        self._settled_ns = 0
        self._moved: weakref.WeakKeyDictionary[Allocations, dict[str, Ownership]] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def under_way(self) -> Mapping[int, "deque[Followed | OpenCopy]"]:
        """Where each submitted copy is appended whose pages :meth:`known` will tell, by its stream."""
        return self._open

    def opened(self, copy: Copy, device_pool: Any) -> OpenCopy:
        """Open both ends of a copy that was just submitted, until its event."""
        self.settle()
        name, op = copy.mirror.pool, copy.op.value
        by = access(f"{op} {copy.op_id}")
        opened = OpenCopy(name, op, by, self._ends(copy, device_pool))
        self._note(lambda: self._enter(opened), name, op)
        return opened

    def known(self, one: Followed, copy: Copy, device_pool: Any, thread: str) -> None:
        """Open the pages of a copy that is over: they have been open since its submission.

        Runs on the bus's thread, in the order of submission.
        """
        self._close_before(one)
        pool, op = one.whose
        ends, by = self._ends(copy, device_pool), Access(f"{op} {copy.op_id}", thread)
        one.opened = opened = OpenCopy(pool, op, by, ends)
        found = self._enter(opened)
        if any(item.words == CLASH.words for item in found):
            found = self._enter_again(one, opened)
        self._entered.append(one)
        if found:
            self._say.found(found, pool, op)

    def submitted(self, copies: list[OpenCopy], over: Any) -> None:
        """Note that the operation of these copies ends with the event ``over``; None if it ended."""
        for copy in copies:
            copy.over = copy.over if over is None else over
            if copy.over is None:
                self._close(copy)
            else:
                with self._lock:
                    self._open[copy.stream].append(copy)

    def settle(self) -> None:
        """Close the copies whose event has come: pages are about to be given away or taken back."""
        self._settled_ns = time.time_ns()
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
        return over

    def _close(self, copy: Followed | OpenCopy) -> None:
        def turn() -> list[Violation]:
            self._closed(copy)
            return []

        self._note(turn, *copy.whose)

    def _closed(self, copy: Followed | OpenCopy) -> None:
        """Close a copy's pages, once."""
        opened = copy if isinstance(copy, OpenCopy) else copy.opened
        if opened is not None and opened.ends:
            self._leave(opened)
            opened.ends = ()
        if not isinstance(copy, OpenCopy):
            copy.closed()

    def _close_before(self, one: Followed) -> None:
        """Close the copies that were over before ``one`` was submitted, or else before it began.

        The latter stay open as long as pages were given away or taken back since ``one`` was submitted:
        that may have been while the copy was under way, and its turn has not come.
        """
        settled, still = self._settled_ns > one.time_ns, list[Followed]()
        for earlier in self._entered:
            if earlier.over_ns <= one.time_ns or (not settled and earlier.over_before(one)):
                self._closed(earlier)
            elif earlier.opened is not None and earlier.opened.ends:
                still.append(earlier)
        while len(still) > _MOST_ENTERED:  # the bus is late
            self._closed(still.pop(0))
        self._entered = still
        copies = self._open.get(one.stream)  # only SGLang's threads add a stream
        with self._lock:
            while copies and _is_closed(copies[0]):
                copies.popleft()

    def _enter_again(self, one: Followed, opened: OpenCopy) -> list[Violation]:
        """Open a copy's pages as if those that were over when it began had been closed.

        Their pages stay open: they may have been given away between the submission of ``one`` and
        their end.
        """
        over, under_way = list[OpenCopy](), list[OpenCopy]()
        for earlier in self._entered:
            if earlier.opened is not None:
                (over if earlier.over_before(one) else under_way).append(earlier.opened)
        for each in (opened, *over, *under_way):
            self._leave(each)
        for each in under_way:
            self._enter(each)
        found = self._enter(opened)
        for each in over:
            self._enter(each)
        return found

    def _leave(self, copy: OpenCopy) -> None:
        for end in copy.ends:
            self._book_of(end).close(end.pages, copy.by, writes=end.writes)

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
        counts_alike = not (record.geometry and record.geometry.generations)
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
        """Treat every page of ``source``, or of all, as if never seen; runs on the bus's thread."""
        if source is None:
            self._moved.clear()
        else:
            self._moved.pop(source, None)


def _is_closed(copy: Followed | OpenCopy) -> bool:
    opened = copy if isinstance(copy, OpenCopy) else copy.opened
    return opened is not None and not opened.ends


def _pages_of(end: Mapping[str, View]) -> int:
    return max([view.pages for view in end.values()], default=0)


def _at_host(copy: Copy, limit: int) -> Pages:
    sure = copy.fits and len(copy.mirror.writes) <= limit
    return copy.host_pages if sure else within(copy.host_pages, limit)


def _at_device(copy: Copy, limit: int) -> Pages:
    sure = copy.fits and copy.mirror.device_pages <= limit
    return copy.device_pages if sure else within(copy.device_pages, limit)


def within(pages: Pages, limit: int) -> Pages:
    """Return the pages below ``limit``; another check reports the rest."""
    there: Pages = pages[(pages >= 0) & (pages < limit)]
    return there
